/** Counts networks for the caps of plans. */
import { type CappedResource, countTable } from '../users/caps.ts'

export const NETWORK_CAPS: CappedResource = { kind: 'networks', noun: 'network', ...countTable('networks') }
