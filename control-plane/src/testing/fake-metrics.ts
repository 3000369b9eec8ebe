/** What a fake host measures of a VM. A running VM gets a sample whenever its series is read, instead of every ten seconds. */
import type { HostVmMetrics, HostVmSeries, MetricsPoint } from '@warren/protocol'

const MIB = 1024 * 1024

export class FakeMetrics {
  cores = 0.5
  memoryBytes = 64 * MIB
  points: MetricsPoint[] = []

  measure = (): HostVmMetrics => ({
    at: new Date().toISOString(),
    cpu_cores_used: this.cores,
    memory_bytes: this.memoryBytes,
  })

  getSeries(isRunning: boolean): HostVmSeries {
    if (isRunning) this.points.push(this.#renderPoint())
    return { points: this.points }
  }

  #renderPoint = (): MetricsPoint => ({
    ts: new Date().toISOString(),
    cpu_cores_used: this.cores,
    memory_bytes: this.memoryBytes,
    memory_used_guest_bytes: this.memoryBytes / 2,
    memory_limit_bytes: 256 * MIB,
    net_bytes_in_per_sec: 10,
    net_bytes_out_per_sec: 20.5,
    storage_bytes: 700 * MIB,
    storage_limit_bytes: 10_240 * MIB,
  })
}
