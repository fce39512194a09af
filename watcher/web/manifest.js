// The manifest of the pod to be scored: the one entered last in this tab, or an example.

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
