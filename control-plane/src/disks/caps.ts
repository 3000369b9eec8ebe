/** Counts disks for the caps of plans. */
import { type CappedResource, countTable } from '../users/caps.ts'

export const DISK_CAPS: CappedResource = { kind: 'disks', noun: 'disk', ...countTable('disks') }
