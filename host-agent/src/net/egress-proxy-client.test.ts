/** The egress proxy may be taken over by what it parses. What it then sends never harms the host agent, which replaces it. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { HOST_NETWORK_DEFAULT } from '@warren/protocol'
import { EgressProxy } from './egress-proxy-client.ts'
import { compilePolicy } from './policy.ts'
import { BROKEN_ANSWERS } from './testing/broken-proxies.ts'
import { MACHINE } from './testing/machine.ts'

const IP = '100.64.0.1'
const PROGRAM = join(import.meta.dirname, 'testing/broken-proxy-program.ts')

/** What the processes were asked so far: one that replaces another gets the same request, and answers it correctly. */
const asked = new Set<string>()
const warnings: string[] = []
const log = { warn: (...parts: unknown[]) => void warnings.push(parts.map(describe).join(' ').trim()) }
let proxy: EgressProxy

before(async () => {
  const settings = { address: '', ports: { dns: 1, http: 2, tls: 3 }, upstreams: [], dnsPerSecond: 1 }
  const start = () =>
    spawn(process.execPath, [PROGRAM, JSON.stringify([...asked])], { stdio: ['ignore', 'ignore', 'pipe', 'pipe'] })
  proxy = await EgressProxy.open(log, start, settings, scaleLimit(2_000))
  const policy = compilePolicy(HOST_NETWORK_DEFAULT, { cidr: '100.64.0.0/16', privateCidrs: [], machine: MACHINE })
  await proxy.setPolicy(IP, policy)
})
after(() => proxy.close())

for (const name of Object.keys(BROKEN_ANSWERS)) {
  test(`${name} from the egress proxy: it is killed, and the next one answers`, async () => {
    const pid = proxy.pid
    warnings.length = 0

    const report = await ask(name)
    // One that answers twice is found out by the second answer, which may come after the first was used.
    if (name === 'two replies') await ask('next')

    assert.deepEqual(report, { decisions: [], flows: [] })
    assert.notEqual(proxy.pid, pid)
    assert.match(warnings[0]!, /^the egress proxy does not follow its protocol and is killed/)
    assert.match(warnings.join('\n'), /the egress proxy died and is restarted/)
  })
}

for (const name of ['no answer', 'a closed channel', 'an exit']) {
  test(`${name} from the egress proxy: another one is started, and answers`, async () => {
    const pid = proxy.pid

    assert.deepEqual(await ask(name), { decisions: [], flows: [] })
    assert.notEqual(proxy.pid, pid)
  })
}

function ask(name: string): Promise<object> {
  asked.add(name)
  return proxy.report(name)
}

/** As the log does: the message last. */
function describe(part: unknown): string {
  if (typeof part === 'string') return part
  return part instanceof Object && 'err' in part ? '' : JSON.stringify(part)
}
