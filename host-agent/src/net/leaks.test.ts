/** Two hundred sandboxes with rules and networks are created and released; nothing of them must remain. */
import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { after, before, test } from 'node:test'
import { NETNS_FOLDER } from './names.ts'
import { runLine, skipReason } from './testing/host.ts'
import { listRuleset } from './testing/kernel-state.ts'
import { TestNetwork, withRules } from './testing/test-network.ts'

const ROUNDS = 10
const PER_ROUND = 20
const RULES = [...Array.from({ length: 50 }, (_, i) => `198.51.${i}.0/24`), '*.example', 'shop.example', '9.9.9.9:53']

let testNet: TestNetwork

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open({ poolSize: 0 })
  })
  after(() => testNet?.close())
}

test('after the last release, rules, namespaces, routes, links, mounts and files are as before', {
  skip: skipReason,
}, async () => {
  const clean = await listTraces()
  const ips = Array.from({ length: PER_ROUND }, (_, index) => `100.64.3.${index + 1}`)
  const networks = [
    { id: 'net-01K0000000000000000000000A', members: ips.map((ip, index) => ({ ip, name: `sandbox-${index}` })) },
  ]

  for (let round = 0; round < ROUNDS; round++) {
    const claimed = await Promise.all(ips.map((ip) => testNet.network.slots.claim(ip, withRules(RULES, { networks }))))
    await Promise.all(
      claimed.map(({ slot }) => testNet.network.slots.change(slot, withRules(['none'], { networks, revision: 1 }))),
    )
    await Promise.all(claimed.map(({ slot }) => testNet.network.slots.release(slot)))
  }

  assert.deepEqual(await listTraces(), clean)
  assert.deepEqual(testNet.network.slots.taken, [])
})

async function listTraces() {
  const { instance } = testNet.network
  return {
    namespaces: readdirSync(NETNS_FOLDER).filter((name) => name.includes(instance)),
    links: await runLine('ip -o link'),
    addresses: await runLine('ip -4 -o addr'),
    routes: await runLine('ip -4 route show table all'),
    rules: listRuleset(),
    mounts: readFileSync('/proc/mounts', 'utf8')
      .split('\n')
      .filter((line) => line.includes(instance)),
    files: testNet.storedFiles(),
  }
}
