// The pod and the profile of the score explorer: those entered last in this tab, or examples.

import { TEMPLATES } from "./profiles.js";

export const EXAMPLE = `apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: default
spec:
  containers:
  - name: web
    image: nginx
    resources:
      requests: {cpu: "1", memory: 1Gi}
      limits: {cpu: "2", memory: 2Gi}
`;

const KEY = "load-watcher-pod";

export function pasted() {
  return sessionStorage.getItem(KEY) ?? EXAMPLE;
}

export function remember(text) {
  sessionStorage.setItem(KEY, text);
}

const PROFILE = "load-watcher-profile";

export function profileText() {
  return sessionStorage.getItem(PROFILE) ?? TEMPLATES.TargetLoadPacking;
}

export function rememberProfile(text) {
  sessionStorage.setItem(PROFILE, text);
}
