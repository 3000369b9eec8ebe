/**
 * netd: the process that changes the network. `netd.ts INSTANCE`, forked by the host agent (netd-client.ts).
 *
 * It is apart because a mistake in FFI kills a process, and because it moves its thread between namespaces. It
 * remembers nothing: what is true stands in the kernel, so a new netd goes on where a killed one stopped. It ends when
 * the host agent's channel closes; namespaces, taps and the programs that hold them live on.
 */
import { stat } from 'node:fs/promises'
import { checkInstance } from '../names.ts'
import type { NetdCalls, NetdMessage, NetdMethod, NetdRequest } from '../netd-protocol.ts'
import { becomeOnlyOne } from '../process-lock.ts'
import { changePolicy } from './change-policy.ts'
import { setUpHost } from './host.ts'
import { type Kernel, openKernel } from './kernel.ts'
import { listSlots } from './list-slots.ts'
import { reapAll, tearDownHost } from './reap.ts'
import { claimSlot, createSlot, releaseSlot } from './slot.ts'
import { readSlot, readUsage } from './slot-report.ts'
import { spawnIn } from './spawn.ts'

type Handlers = {
  [M in NetdMethod]: (
    ...params: Parameters<NetdCalls[M]>
  ) => ReturnType<NetdCalls[M]> | Promise<ReturnType<NetdCalls[M]>>
}

/** libuv's default. Each lookup below keeps one thread busy for a moment. */
const POOL_THREADS = 4

process.on('disconnect', () => process.exit(0))
// The terminal's Ctrl-C is for the host agent, which closes the channel when it is done with us.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {})

// The pool's threads start here, in the host's namespace, and not during a visit to a sandbox's.
await Promise.all(Array.from({ length: POOL_THREADS }, () => stat('/')))
const instance = checkInstance(process.argv[2] ?? '')
await becomeOnlyOne(instance)
const kernel = openKernel(instance)
const handlers = handlersOf(kernel)
process.on('message', (request: NetdRequest) => void answer(request))

async function answer({ id, method, params }: NetdRequest): Promise<void> {
  try {
    const handler = handlers[method] as (...params: unknown[]) => unknown
    say({ id, result: await handler(...params) })
  } catch (error) {
    say({ id, error: { message: wholeMessage(error), ...codeOf(error) } })
  }
}

function handlersOf(kernel: Kernel): Handlers {
  return {
    setUpHost: (settings) => setUpHost(kernel, settings),
    tearDownHost: async () => ({ released: await tearDownHost(kernel) }),
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
    spawnIn: (settings) => spawnIn(kernel, settings, (exit) => say({ exit })),
  }
}

/** Nobody listens any more when the channel is closed; the process is about to end. */
function say(message: NetdMessage): void {
  if (process.connected) process.send!(message, undefined, undefined, () => {})
}

/** Causes do not cross the channel, so their words go into the message. */
function wholeMessage(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  return error.cause === undefined ? error.message : `${error.message}: ${wholeMessage(error.cause)}`
}

function codeOf(error: unknown): { code?: string } {
  for (let at = error; at instanceof Error; at = at.cause) {
    const { code } = at as NodeJS.ErrnoException
    if (code !== undefined) return { code }
  }
  return {}
}
