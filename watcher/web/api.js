// Questions to the service. What has not changed is neither sent (If-None-Match, 304) nor parsed again.

const kept = new Map(); // address -> { etag, body, age, at }
const MOST_KEPT = 40;
const TOKEN = "load-watcher-token";

export class ApiError extends Error {
  /** `status` 0 stands for no answer at all. */
  constructor(status, code, message, hint) {
    super(message);
    Object.assign(this, { status, code, hint });
  }
}

let unauthorized = () => {};

export function useToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

/** `call` is called when an answer needs a token, or another one than was sent (then with true). */
export function whenUnauthorized(call) {
  unauthorized = call;
}

function authorized(headers) {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { ...headers, Authorization: `Bearer ${token}` } : headers;
}

/** { body, changed, age, at }: `age` is the document's own in seconds when it arrived, or null; `at` when that was. */
export async function ask(path) {
  const before = kept.get(path);
  const answer = await send(path, { headers: authorized(before?.etag ? { "If-None-Match": before.etag } : {}) });
  const age = answer.headers.get("Age");
  const now = { age: age == null ? null : Number(age), at: Date.now() };
  if (answer.status === 304 && before) {
    Object.assign(before, now);
    return { ...before, changed: false };
  }
  const body = await read(answer);
  const entry = { etag: answer.headers.get("ETag"), body, ...now };
  kept.delete(path);
  kept.set(path, entry);
  if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  return { ...entry, changed: true };
}

/** The answer to a body that is sent. */
export async function post(path, body, type = "application/json") {
  return read(await send(path, { method: "POST", body, headers: authorized({ "Content-Type": type }) }));
}

async function send(path, options) {
  try {
    return await fetch(path, { ...options, cache: "no-store", signal: AbortSignal.timeout(20000) });
  } catch (error) {
    throw new ApiError(0, "no_answer", `no answer from load-watcher: ${error.message}`, "is it running?");
  }
}

async function read(answer) {
  let body;
  try {
    body = await answer.json();
  } catch {
    throw new ApiError(answer.status, "no_json", `status ${answer.status}, and no JSON`, "is this load-watcher that answers?");
  }
  if (answer.ok) return body;
  if (answer.status === 401) unauthorized(sessionStorage.getItem(TOKEN) != null);
  const { code = "error", message = `status ${answer.status}`, hint = "" } = body?.error ?? {};
  throw new ApiError(answer.status, code, message, hint);
}
