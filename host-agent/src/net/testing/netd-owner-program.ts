/**
 * Imitates a host agent that is killed: starts a netd for the instance in argv[2], requests 50 slots without waiting
 * for them, and sends the pid of its netd to the parent.
 */
import { Netd } from '../netd-client.ts'

const netd = new Netd(process.argv[2]!)
await netd.request('listSlots')
for (let slot = 0; slot < 50; slot++)
  void netd.request('createSlot', { slot, mtu: 1400, tapOwnerUid: 0, packetsPerSecond: 100_000 })
process.send!(netd.pid)
