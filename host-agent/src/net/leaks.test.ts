/** Two hundred sandboxes with rules and networks come and go; the machine is as before. */
import assert from 'node:assert/strict'
import { readdirSync, readFileSync } from 'node:fs'
import { after, before, test } from 'node:test'
import { NETNS_FOLDER } from './names.ts'
import { cannotRun, command } from './testing/host.ts'
import { World, withRules } from './testing/test-network.ts'

const ROUNDS = 10
const AT_ONCE = 20
const RULES = [...Array.from({ length: 50 }, (_, i) => `198.51.${i}.0/24`), '*.example', 'shop.example', '9.9.9.9:53']

let world: World

if (cannotRun === false) {
  before(async () => {
    world = await World.open({ poolSize: 0 })
  })
  after(() => world?.close())
}

test('rules, namespaces, routes, links, mounts and files are as before', { skip: cannotRun }, async () => {
  const clean = await traces()
  const ips = Array.from({ length: AT_ONCE }, (_, index) => `100.64.3.${index + 1}`)
  const networks = [
    { id: 'net-01K0000000000000000000000A', members: ips.map((ip, index) => ({ ip, name: `box-${index}` })) },
  ]

  for (let round = 0; round < ROUNDS; round++) {
    const claimed = await Promise.all(ips.map((ip) => world.network.slots.claim(ip, withRules(RULES, { networks }))))
    await Promise.all(
      claimed.map(({ slot }) => world.network.slots.change(slot, withRules(['none'], { networks, revision: 1 }))),
    )
    await Promise.all(claimed.map(({ slot }) => world.network.slots.release(slot)))
  }

  assert.deepEqual(await traces(), clean)
  assert.deepEqual(world.network.slots.taken, [])
})

async function traces() {
  const { instance } = world.network
  return {
    namespaces: readdirSync(NETNS_FOLDER).filter((name) => name.includes(instance)),
    links: await command('ip -o link'),
    addresses: await command('ip -4 -o addr'),
    routes: await command('ip -4 route show table all'),
    rules: await command('nft list ruleset'),
    mounts: readFileSync('/proc/mounts', 'utf8')
      .split('\n')
      .filter((line) => line.includes(instance)),
    files: world.keptFiles(),
  }
}
