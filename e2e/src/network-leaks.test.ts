/** Sandboxes with networks and rules leave nothing on the machine. `npm run soak` creates two hundred of them. */
import assert from 'node:assert/strict'
import { globSync, readdirSync, readFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { listProcesses } from './support/instance.ts'
import { Internet, moveToIsolatedMachine, runCommand } from './support/isolated-machine.ts'
import { createSandbox, destroySandbox, pauseSandbox, requestOk, resumeSandbox } from './support/sandboxes.ts'
import {
  cannotRunVms,
  deleteAllSandboxes,
  SOAK,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

if (!cannotRunVms) moveToIsolatedMachine()
if (!cannotRunVms) await Internet.start()
// Without pool and standby, so that everything that remains is a leak.
const warren = await startUnlessSkipped(cannotRunVms, () =>
  startVmInstance({ WARREN_POOL_MIB: '0', WARREN_STANDBY_MIB: '0' }),
)

const SANDBOXES = SOAK ? 200 : 18
const AT_ONCE = 6
const RULES = [...Array.from({ length: 20 }, (_, i) => `198.51.${i}.0/24:443`), '*.example', 'shop.example', '9.9.9.9']

describe('network resources of sandboxes', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test(`after ${SANDBOXES} sandboxes with networks and rules the machine is as before`, {
    timeout: VM_STORIES_LIMIT_MS,
  }, async () => {
    for (const name of ['front', 'back']) await requestOk(warren, 'POST', '/networks', { name })
    await runBatch(1)
    await deleteAllSandboxes(warren)
    const before = await listSettledResources()

    for (let done = 0; done < SANDBOXES; done += AT_ONCE) await runBatch(Math.min(AT_ONCE, SANDBOXES - done))
    await deleteAllSandboxes(warren)

    assert.deepEqual(await listSettledResources(), before)
    for (const name of ['front', 'back']) await requestOk(warren, 'DELETE', `/networks/${name}`)
  })
})

/** In each batch one sandbox is paused and resumed, and another is deleted while it is paused. */
async function runBatch(count: number): Promise<void> {
  const networks = [{ id: 'front' }, { id: 'back' }]
  const ids = await Promise.all(
    Array.from({ length: count }, async () => (await createSandbox(warren, { networks, egress: RULES })).id),
  )
  await Promise.all(ids.map((id) => requestOk(warren, 'PUT', `/sandboxes/${id}/egress`, { egress: ['none'] })))
  await requestOk(warren, 'DELETE', `/sandboxes/${ids[0]}/networks/front`)
  await pauseSandbox(warren, ids[0]!)
  await resumeSandbox(warren, ids[0]!)
  await pauseSandbox(warren, ids.at(-1)!)
  await Promise.all(ids.map((id) => destroySandbox(warren, id)))
}

/** Waits until the pool of ready slots is full and two reads agree. */
async function listSettledResources() {
  let current = listResources()
  await until(() => {
    const previous = JSON.stringify(current)
    current = listResources()
    return current.slots === READY_SLOTS && JSON.stringify(current) === previous
  }, 'nothing changes any more')
  return current
}
/** host-agent/src/choose-network.ts. */
const READY_SLOTS = 8

function listResources() {
  const lines = (text: string) => text.split('\n').filter(Boolean)
  const instance = /warren_([0-9a-f]{8})/.exec(runCommand('nft list tables'))![1]!
  const isSlot = (line: string) => line.includes(`w${instance}`)
  const isOfBase = (path: string) => /\/(base|verify)-/.test(path)
  return {
    slots: readdirSync('/run/netns').filter((name) => name.includes(instance)).length,
    mounts: lines(readFileSync('/proc/mounts', 'utf8')).filter((line) => line.includes(instance)).length,
    // Each ready slot has an interface with the host's address; their numbers depend on earlier slots.
    slotLinks: lines(runCommand('ip -o link')).filter(isSlot).length,
    links: lines(runCommand('ip -o link')).filter((line) => !isSlot(line)),
    addresses: lines(runCommand('ip -o addr')).filter((line) => !isSlot(line)),
    routes: lines(runCommand('ip route show table all')).filter(
      (line) => !(isSlot(line) && line.startsWith('local 169.254.1.1')),
    ),
    rules: runCommand('nft list ruleset'),
    cgroups: globSync(`/sys/fs/cgroup/{,*/}warren-${instance}/*/`).filter((path) => !isOfBase(path)),
    // Bases of other shapes may still be booting in the background.
    files: globSync(`/run/warren-${instance}/{*,network/*}`)
      .filter((path) => !isOfBase(path))
      .sort(),
    qemus: listProcesses(warren.instance.dataDir).filter((pid) => isQemu(pid) && !isOfBase(commandOf(pid))).length,
  }
}

const isQemu = (pid: number): boolean => commandOf(pid).startsWith('qemu')

function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8')
  } catch {
    return '' // It exited meanwhile.
  }
}
