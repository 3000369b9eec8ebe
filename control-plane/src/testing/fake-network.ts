/**
 * The network of a VM of a fake host: it stores its policy, ignores older revisions, and counts like the kernel:
 * traffic over the quota is dropped, and totals continue across pause and resume.
 */
import type {
  EgressDecision,
  EgressFlow,
  HostNetworks,
  HostVmNetwork,
  HostVmNetworkApplied,
  HostVmNetworkReport,
} from '@warren/protocol'

export class FakeNetwork {
  network: HostVmNetwork
  usedBytes: number
  ingressBytes: number
  capped = false
  decisions: EgressDecision[] = []
  flows: EgressFlow[] = []
  /** False once the agent that received the policy has died. */
  known = true

  /** Counts never go back: those of a resume may be older than what this host counted. */
  constructor(network: HostVmNetwork, previous?: FakeNetwork) {
    this.network = network
    this.usedBytes = Math.max(network.bandwidth.used_bytes, previous?.usedBytes ?? 0)
    this.ingressBytes = Math.max(network.bandwidth.ingress_bytes, previous?.ingressBytes ?? 0)
  }

  put(network: HostVmNetwork): HostVmNetworkApplied {
    if (network.revision >= this.network.revision) {
      this.network = network
      this.known = true
      const { quota_bytes } = network.bandwidth
      if (quota_bytes === -1 || quota_bytes > this.usedBytes) this.capped = false
    }
    return { revision: this.network.revision }
  }

  /** The guest sends this much; what exceeds its budget is dropped. */
  send(bytes: number): void {
    const { quota_bytes } = this.network.bandwidth
    const left = quota_bytes === -1 ? bytes : Math.max(0, quota_bytes - this.usedBytes)
    this.usedBytes += Math.min(bytes, left)
    this.capped = bytes > left
  }

  receive(bytes: number): void {
    this.ingressBytes += bytes
  }

  report(): HostVmNetworkReport {
    const { decisions, flows } = this
    const bandwidth = {
      quota_bytes: this.network.bandwidth.quota_bytes,
      used_bytes: this.usedBytes,
      ingress_bytes: this.ingressBytes,
      capped: this.capped,
    }
    return { revision: this.network.revision, bandwidth, decisions, flows }
  }

  describe(id: string, running: boolean): HostNetworks['vms'][number] {
    const counts = { id, used_bytes: this.usedBytes, ingress_bytes: this.ingressBytes }
    return running && this.known ? { ...counts, revision: this.network.revision } : counts
  }
}
