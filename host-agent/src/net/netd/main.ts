/**
 * netd: the process that changes the network. `main.ts INSTANCE`, forked by the host agent (../netd-client.ts).
 *
 * It is a separate process because it uses FFI, where a mistake kills the process, and because it moves its thread
 * between network namespaces. It stores nothing: the kernel holds the state, so a new netd continues where a killed one
 * stopped. It exits when the host agent's channel closes; namespaces and taps remain.
 */
import { startThreadPool } from '../../ffi/network-namespace.ts'
import { acquireProcessLock, lockSharedNetwork } from '../../process-lock.ts'
import { endWithParent, sendToParent } from '../../rpc/child-channel.ts'
import type { RpcRequest } from '../../rpc/protocol.ts'
import { type Handlers, serveRequest } from '../../rpc/serve-request.ts'
import { checkInstance } from '../names.ts'
import type { NetdCalls } from '../netd-protocol.ts'
import { changePolicy } from './change-policy.ts'
import { checkHost, removeHost, setUpHost } from './host.ts'
import { openKernel } from './kernel.ts'
import { listSlots } from './list-slots.ts'
import { reapAll } from './reap.ts'
import { claimSlot, createSlot, releaseSlot } from './slot.ts'
import { readSlot, readUsage } from './slot-report.ts'

endWithParent()
await startThreadPool()
const instance = checkInstance(process.argv[2] ?? '')
await acquireProcessLock('netd', instance)

const kernel = openKernel(instance)
const handlers: Handlers<NetdCalls> = {
  setUpHost: (settings) => withSharedNetwork(() => setUpHost(kernel, settings)),
  checkHost: (settings) => checkHost(kernel, settings),
  tearDownHost: async () => {
    const released = await reapAll(kernel, [])
    await withSharedNetwork(() => removeHost(kernel))
    return { released }
  },
  createSlot: (settings) => {
    createSlot(kernel, settings)
    return null
  },
  claimSlot: (claim) => {
    claimSlot(kernel, claim)
    return null
  },
  changePolicy: (change) => {
    changePolicy(kernel, change)
    return null
  },
  readSlot: ({ slot }) => readSlot(kernel, slot),
  readUsage: ({ slots }) => readUsage(kernel, slots),
  releaseSlot: ({ slot }) => releaseSlot(kernel, slot),
  listSlots: () => listSlots(kernel),
  reapAll: async ({ except }) => ({ released: await reapAll(kernel, except) }),
}
process.on('message', async (request: RpcRequest) => sendToParent(await serveRequest(handlers, request)))

/**
 * The last Warren on the machine removes the address of the host and turns forwarding off. Without the lock one that stops
 * would not see one that starts at the same moment, and take both away from it.
 */
async function withSharedNetwork<T>(change: () => T): Promise<T> {
  const release = await lockSharedNetwork()
  try {
    return change()
  } finally {
    release()
  }
}
