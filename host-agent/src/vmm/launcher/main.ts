/**
 * The VMM launcher: the process that starts QEMU. `main.ts INSTANCE`, forked by the host agent (../launcher-client.ts).
 *
 * It is a separate process because it uses FFI, where a mistake kills the process, and because it enters the network
 * namespaces of sandboxes to attach their taps. It stores nothing that must survive: a new launcher continues where a
 * killed one stopped. The programs it started outlive it.
 */
import { HostNamespace, startThreadPool } from '../../ffi/network-namespace.ts'
import { checkInstance } from '../../net/names.ts'
import { acquireProcessLock } from '../../process-lock.ts'
import { endWithParent, sendToParent } from '../../rpc/child-channel.ts'
import type { RpcRequest } from '../../rpc/protocol.ts'
import { type Handlers, serveRequest } from '../../rpc/serve-request.ts'
import type { LauncherCalls, LauncherNotice } from '../launcher-protocol.ts'
import { spawnProgram } from './spawn.ts'

endWithParent()
await startThreadPool()
const instance = checkInstance(process.argv[2] ?? '')
await acquireProcessLock('launcher', instance)

const host = new HostNamespace()
const handlers: Handlers<LauncherCalls> = {
  ready: () => null,
  spawn: (request) =>
    spawnProgram({ instance, host }, request, (exited) => sendToParent({ exited } satisfies LauncherNotice)),
}
process.on('message', async (request: RpcRequest) => sendToParent(await serveRequest(handlers, request)))
