/**
 * How long the network of a sandbox takes, and what rules and the proxy cost: `measure.ts [SANDBOXES]`, as root, in
 * namespaces of its own. Throughput is measured with a guest at kernel speed (a pair of links in place of the tap),
 * and interleaved, because the machine's noise should fall on all.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { setTimeout as sleep } from 'node:timers/promises'
import { HOST_NETWORK_DEFAULT, type HostVmNetwork } from '@warren/protocol'
import { runOrThrow } from '../../run.ts'
import { GUEST_ADDRESS, netnsName } from '../names.ts'
import { renderCutTable } from '../nft/cut-table.ts'
import { inRecords, renderHello } from './hello.ts'
import { command } from './host.ts'
import { SHOP } from './names.ts'
import { waitUntil } from './start-guest.ts'
import { World, withRules } from './world.ts'

const SAMPLES = 40
const POURS = 5
const POUR_BYTES = 100_000_000
const SANDBOXES = Number(process.argv[2] ?? 200)
const MANY_RULES = Array.from({ length: 1_000 }, (_, i) => `203.${i >> 8}.${i & 255}.0/24${i % 2 === 0 ? '' : ':443'}`)
const UNMETERED: HostVmNetwork['bandwidth'] = { ...HOST_NETWORK_DEFAULT.bandwidth, quota_bytes: -1 }

/** Milliseconds for so many bytes through one connection. */
const POUR = `
const [host, hello, bytes] = process.argv.slice(1)
const socket = require('node:net').connect({ host, port: 443 })
const piece = Buffer.alloc(256 * 1024)
socket.once('data', () => {
  const startedAt = performance.now()
  let left = Number(bytes)
  const pour = () => {
    while (left > 0) { left -= piece.length; if (!socket.write(piece)) return void socket.once('drain', pour) }
    socket.end()
  }
  socket.on('close', () => console.log(performance.now() - startedAt))
  pour()
})
socket.write(hello, 'hex')
`

/** Milliseconds of questions for an allowed name, one after the other. */
const ASK = `
const resolver = new (require('node:dns').promises.Resolver)()
resolver.setServers(['169.254.1.1'])
;(async () => {
  const times = []
  for (let i = 0; i < 200; i++) { const at = performance.now(); await resolver.resolve4('shop.example'); times.push(performance.now() - at) }
  console.log(JSON.stringify(times))
})()
`

const world = await World.open({ poolSize: 8 })
const { slots, netd } = world.network
const SLOT = { mtu: world.network.host.mtu, tapOwnerUid: 0 }
let revision = 0

const guests: ChildProcess[] = []
try {
  await oneSandbox()
  await throughput()
  await manySandboxes()
} finally {
  for (const guest of guests) guest.kill('SIGKILL')
  await world.close()
}
process.exit()

async function oneSandbox(): Promise<void> {
  const times = new Map<string, number[]>()
  const timed = async <T>(what: string, work: () => Promise<T>): Promise<T> => {
    const startedAt = performance.now()
    const result = await work()
    times.set(what, [...(times.get(what) ?? []), performance.now() - startedAt])
    return result
  }
  for (let sample = 0; sample < SAMPLES; sample++) {
    await waitUntil(() => slots.readyCount === 8)
    const slot = 500_000 + sample
    await timed('make a slot', () => netd.request('createSlot', { slot, ...SLOT }))
    await timed('tear a slot down, the kernel’s freeing included', () => netd.request('releaseSlot', { slot }))
    await waitUntil(() => slots.readyCount === 8)
    const claimed = await timed('claim from the pool', () => slots.claim('100.64.9.1'))
    await timed('apply 1,000 rules', () => slots.change(claimed.slot, withRules(MANY_RULES, next())))
    await timed('back to none', () => slots.change(claimed.slot, withRules(['none'], next())))
    await timed('read counters', () => slots.usage([claimed.slot]))
    await timed('release', () => slots.release(claimed.slot))
  }
  for (const [what, list] of times) print(what, list, 'ms')
}

async function throughput(): Promise<void> {
  const { slot } = await slots.claim('100.64.9.2', withRules([], { bandwidth: UNMETERED, ...next() }))
  const guest = await fastGuest(slot)
  const hello = Buffer.concat(inRecords(renderHello('shop.example'))).toString('hex')
  const ways: [string, HostVmNetwork][] = [
    ['open', withRules([], { bandwidth: UNMETERED })],
    ['metered, open', withRules([], { bandwidth: { ...UNMETERED, quota_bytes: 10 ** 15 } })],
    ['1,000 address rules', withRules([...MANY_RULES, SHOP], { bandwidth: UNMETERED })],
    ['through the proxy', withRules(['shop.example'], { bandwidth: UNMETERED })],
  ]
  const rates = new Map<string, number[]>(ways.map(([way]) => [way, []]))
  for (let round = 0; round < POURS; round++) {
    for (const [way, network] of ways) {
      await slots.change(slot, { ...network, ...next() })
      const ms = Number(await inGuest(guest, POUR, [SHOP, hello, `${POUR_BYTES}`]))
      rates.get(way)!.push(POUR_BYTES / 1e6 / (ms / 1e3))
    }
  }
  for (const [way, list] of rates) print(`throughput, ${way}`, list, 'MB/s')
  await slots.release(slot)
}

async function manySandboxes(): Promise<void> {
  const first = await slots.claim('100.64.9.3', withRules(['shop.example'], next()))
  const guest = await fastGuest(first.slot)
  const measure = async (when: string) => {
    const asked = JSON.parse(await inGuest(guest, ASK, [])) as number[]
    print(`a question of the first, ${when}`, asked, 'ms')
    const changes: number[] = []
    for (let sample = 0; sample < SAMPLES; sample++) {
      const startedAt = performance.now()
      await slots.change(first.slot, withRules(['shop.example', `1.1.1.${sample}`], next()))
      changes.push(performance.now() - startedAt)
    }
    print(`a change of the first’s rules, ${when}`, changes, 'ms')
  }
  await measure('alone')
  const rules = [...MANY_RULES.slice(0, 100), ...Array.from({ length: 20 }, (_, i) => `*.host-${i}.example`)]
  const claims: number[] = []
  for (let index = 0; index < SANDBOXES; index++) {
    const startedAt = performance.now()
    await slots.claim(`100.64.${20 + (index >> 8)}.${index & 255}`, withRules(rules, next()))
    claims.push(performance.now() - startedAt)
  }
  print(`a claim with 120 rules, the first 20 of ${SANDBOXES}`, claims.slice(0, 20), 'ms')
  print(`a claim with 120 rules, the last 20 of ${SANDBOXES}`, claims.slice(-20), 'ms')
  await measure(`with ${SANDBOXES} others`)
}

function next(): { revision: number } {
  return { revision: ++revision }
}

/** A namespace joined to the slot's by a pair of links under the tap's name. */
async function fastGuest(slot: number): Promise<ChildProcess> {
  const child = spawn('unshare', ['-n', 'sleep', '1000'], { stdio: 'ignore' })
  guests.push(child)
  const enter = `nsenter -t ${child.pid} -n`
  const own = await command('readlink /proc/self/ns/net')
  await waitUntil(async () => (await command(`readlink /proc/${child.pid}/ns/net`)) !== own)
  const netns = netnsName(world.network.instance, slot)
  await command(`ip -n ${netns} link del tap0`)
  await command(
    `ip -n ${netns} link add tap0 mtu ${SLOT.mtu} type veth peer name eth0 mtu ${SLOT.mtu} netns ${child.pid}`,
  )
  // The cut went with the tap it was at.
  await runOrThrow('ip', ['netns', 'exec', netns, 'nft', '-f', '-'], { input: renderCutTable() })
  for (const line of ['addr add 172.30.0.1/30 dev tap0', 'link set tap0 up']) await command(`ip -n ${netns} ${line}`)
  for (const line of [`addr add ${GUEST_ADDRESS}/30 dev eth0`, 'link set eth0 up', 'route add default via 172.30.0.1'])
    await command(`${enter} ip ${line}`)
  return child
}

async function inGuest(guest: ChildProcess, program: string, args: string[]): Promise<string> {
  const child = spawn('nsenter', ['-t', `${guest.pid}`, '-n', process.execPath, '-e', program, ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let text = ''
  for await (const chunk of child.stdout) text += chunk
  await sleep(50) // the last connection's end
  return text
}

function print(what: string, values: number[], unit: string): void {
  const sorted = values.toSorted((one, other) => one - other)
  const at = (share: number) => sorted[Math.min(Math.floor(sorted.length * share), sorted.length - 1)]!
  const text = [at(0), at(0.5), at(0.9)].map((value) => value.toFixed(value < 100 ? 2 : 0))
  process.stdout.write(`| ${what} | ${text.join(' | ')} | ${unit} |\n`)
}
