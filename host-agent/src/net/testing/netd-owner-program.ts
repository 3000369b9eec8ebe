/** Stands in for a host agent that gets killed: starts a netd for the instance of argv[2], asks for 50 slots, waits. */
import { Netd } from '../netd-client.ts'

const netd = new Netd(process.argv[2]!)
await netd.request('listSlots')
for (let slot = 0; slot < 50; slot++) void netd.request('createSlot', { slot, mtu: 1400, tapOwnerUid: 0 })
process.send!(netd.pid)
