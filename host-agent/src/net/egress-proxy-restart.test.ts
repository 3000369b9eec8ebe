/** Three processes are the egress proxy (jail/src/service.rs). Whichever of them dies, all of them do, and others take their place. */
import assert from 'node:assert/strict'
import { existsSync, readFileSync } from 'node:fs'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { skipReason } from './testing/host.ts'
import { type Sandbox, TestNetwork, withRules } from './testing/test-network.ts'

const ROLES = ['the jail', 'the first process in it', 'the proxy itself'] as const

let testNet: TestNetwork
let sandbox: Sandbox

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open()
    sandbox = await testNet.addSandbox('100.64.0.10', withRules(['shop.example']))
  })
  after(() => testNet?.close())
}

for (const [index, role] of ROLES.entries()) {
  test(`when ${role} is killed, another proxy serves the sandbox by its rules`, { skip: skipReason }, async (t) => {
    const before = listProxy()
    assert.equal(before.length, ROLES.length)

    const killedAt = performance.now()
    process.kill(before[index]!, 'SIGKILL')
    await until(() => ![undefined, before[0]].includes(testNet.network.egressProxy.pid), 'another one is ready')
    t.diagnostic(`replaced after ${Math.round(performance.now() - killedAt)} ms`)

    assert.deepEqual(await ask('shop.example', 'evil.example'), ['NOERROR 192.0.2.6', 'NXDOMAIN'])
    assert.deepEqual(before.filter(isRunning), [])
    assert.equal(listProxy().length, ROLES.length)
  })
}

test('when the network closes, nothing of the proxy remains', { skip: skipReason }, async () => {
  const processes = listProxy()

  await testNet.network.egressProxy.close()

  await until(() => !processes.some(isRunning), 'all three have ended')
})

const ask = (...names: string[]): Promise<string[]> =>
  sandbox.guest.probe(...names.map((query) => ({ query, type: 1 })))

/** The process that the host agent started, its child and the child of that. */
function listProxy(): number[] {
  const pids: number[] = []
  for (let pid = testNet.network.egressProxy.pid; pid; pid = findChild(pid)) pids.push(pid)
  return pids
}

const findChild = (pid: number): number | undefined =>
  Number(readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ')[0]) || undefined

const isRunning = (pid: number): boolean => existsSync(`/proc/${pid}/root`)
