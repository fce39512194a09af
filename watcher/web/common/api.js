// Requests to the service. Unchanged documents are neither sent (If-None-Match, 304) nor parsed again.

const kept = new Map(); // path -> { etag, body, age, at }
const MOST_KEPT = 40;
const TOKEN = "load-watcher-token";

export class ApiError extends Error {
  /** `status` is the HTTP status; 0 means no response. `body` is the document of the response, null without one. */
  constructor(status, code, message, hint, body = null) {
    super(message);
    Object.assign(this, { status, code, hint, body });
  }
}

let unauthorized = () => {};

export function useToken(token) {
  sessionStorage.setItem(TOKEN, token);
}

/** Registers `call`, which is called on status 401: with false if no token was sent, with true if it was invalid. */
export function whenUnauthorized(call) {
  unauthorized = call;
}

function authorized(headers) {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { ...headers, Authorization: `Bearer ${token}` } : headers;
}

/** GETs a document: { body, changed, age, at }. `age` is its Age header in seconds or null, `at` the time of receipt in
 *  milliseconds. */
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

/** POSTs a body and returns the parsed response. */
export async function post(path, body, type = "application/json") {
  return read(await send(path, { method: "POST", body, headers: authorized({ "Content-Type": type }) }));
}

async function send(path, options) {
  try {
    return await fetch(path, { ...options, cache: "no-store", signal: AbortSignal.timeout(20000) });
  } catch (error) {
    throw new ApiError(0, "no_answer", `no response from load-watcher: ${error.message}`, "check that it is running");
  }
}

async function read(answer) {
  let body;
  try {
    body = await answer.json();
  } catch {
    throw new ApiError(answer.status, "no_json", `status ${answer.status} without JSON`, "check that the responding server is load-watcher");
  }
  if (answer.ok) return body;
  if (answer.status === 401) unauthorized(sessionStorage.getItem(TOKEN) != null);
  const { code = "error", message = `status ${answer.status}`, hint = "" } = body?.error ?? {};
  throw new ApiError(answer.status, code, message, hint, body);
}
