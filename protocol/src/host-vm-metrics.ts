/** What a host measures of one VM. The limits in a point are those that the VM had at that time. */
import { type Static, Type } from 'typebox'
import { Timestamp } from './ids.ts'
import { MetricsPoint } from './metrics.ts'

/** Of a running VM, at this moment. The guest is not asked. */
export const HostVmMetrics = Type.Object({
  at: Timestamp,
  cpu_cores_used: Type.Number({
    minimum: 0,
    description: 'Average of the last 15 to 30 seconds, or since the VM started. 0 if it was never measured before.',
  }),
  memory_bytes: Type.Integer({ minimum: 0, description: 'Resident memory of the VMM.' }),
})
export type HostVmMetrics = Static<typeof HostVmMetrics>

/** The samples of the last hour, oldest first. There are none of times at which the VM did not run. */
export const HostVmSeries = Type.Object({ points: Type.Array(MetricsPoint) })
export type HostVmSeries = Static<typeof HostVmSeries>
