// Texts to start from when the user enters a profile: the plug-ins of Trimaran with their default arguments.

export const TEMPLATES = {
  TargetLoadPacking: `plugins:
- name: TargetLoadPacking
  args:
    targetUtilization: 40
    defaultRequests: {cpu: 1000m}
    defaultRequestsMultiplier: "1.5"
`,
  LoadVariationRiskBalancing: `plugins:
- name: LoadVariationRiskBalancing
  args:
    safeVarianceMargin: 1
    safeVarianceSensitivity: 1
`,
  LowRiskOverCommitment: `plugins:
- name: LowRiskOverCommitment
  args:
    smoothingWindowSize: 5
    riskLimitWeights: {cpu: 0.5, memory: 0.5}
`,
  Peaks: `plugins:
- name: Peaks
  args:
    NodePowerModel:
      node-1: {k0: 471.7412504314313, k1: -91.50493019588365, k2: -0.07186049052516228}
`,
  KubeSchedulerConfiguration: `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- schedulerName: trimaran
  plugins:
    score:
      enabled:
      - name: TargetLoadPacking
  pluginConfig:
  - name: TargetLoadPacking
    args:
      targetUtilization: 40
`,
};
