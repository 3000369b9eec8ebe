/** The programs of Warren that run in guests. They are static, so that they run in every image; the set-up builds them. */
import path from 'node:path'

export type GuestPrograms = {
  /** PID 1 (`guest-agent/`). */
  agent: string
  /** Mounts buckets (`bucket-mount/`). */
  bucketMount: string
}

const built = (name: string): string => path.resolve(import.meta.dirname, `../../../${name}/target/warren/${name}`)

export const GUEST_PROGRAMS: GuestPrograms = { agent: built('guest-agent'), bucketMount: built('bucket-mount') }
