/**
 * An egress proxy or S3 proxy that was taken over gains nothing beyond what it is for. The attacks (jail/examples/attack) run where the proxy
 * would: with the same command line of the jail, on a host with the rules for its user. They run once more as another user without the
 * jail, which shows that the attempts are real and that this machine has something to protect.
 */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { chownSync, cpSync, mkdirSync } from 'node:fs'
import { type AddressInfo, createServer } from 'node:net'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { type Confinement, confine, REPOSITORY } from '@warren/kit/confine/confine'
import { s3ProxyConfinement } from '../disks/s3-proxy-jail.ts'
import { runCommandOrThrow } from '../run-command.ts'
import {
  ATTACK,
  listImpossible,
  listSuccesses,
  type Outcomes,
  openTargets,
  parseOutcomes,
} from '../vmm/jail/testing.ts'
import { proxyConfinement } from './egress-proxy-jail.ts'
import { netnsPath } from './names.ts'
import { skipReason, UPLINK } from './testing/host.ts'
import { TestNetwork } from './testing/test-network.ts'

/** What it can do, and why that gains nothing. */
const HARMLESS = new Map([
  ['read /etc/passwd', 'a file of the jail, without the accounts of the machine'],
  ['list /etc', 'a folder of the jail: libraries, names and certificates'],
  [`list /${REPOSITORY.split('/')[1]}`, 'the code is below it, and there are no folders but those that lead there'],
  ['read /dev/urandom', 'random numbers'],
  ['list /tmp', 'a folder of the jail, empty'],
  ['list /dev/shm', 'the same'],
  ['create /tmp/new', 'in the memory of the jail, which ends with it'],
  ['create /dev/shm/new', 'the same'],
  ['listen on all addresses', 'its replies reach sandboxes only'],
  ['open ../../../../../../../etc/passwd from the own folder', 'the file of the jail, as above'],
  ["link a file to another user's", 'in its own folder, to a path of the jail'],
  ['make a file larger than any disk', 'without content, in the memory of the jail'],
  ['lock memory without limit', 'up to its limit'],
  ['make a message queue', 'in its own IPC namespace'],
  ['make an anonymous file', 'in its own memory'],
  ['fork', 'the child is in the jail as well'],
  ['execute a shell', 'the same'],
])

/** What another user can do without the jail, besides what every jail is tested with. */
const POSSIBLE_WITHOUT = [
  'read /etc/hostname',
  'read /proc/net/tcp',
  'see the connections of the machine',
  'list /sys',
  'list /var',
  'list /run',
  'list the folder of another sandbox',
  'create /var/tmp/new',
  'open it as a descriptor',
  'connect to port 169.254.1.1',
  `connect to port ${UPLINK.address}`,
  'connect to an abstract Unix socket outside',
  'ask the kernel for the connections of the machine',
  'ask the kernel for the events of devices',
  'send a datagram',
  'start a thousand processes',
  'open a mount',
]

/** Of this test alone, because it starts processes until it cannot start more. No account of the machine has them. */
const PROXY_UID = 700_000_000 + 3 * process.pid
const OTHER_UID = PROXY_UID + 1
const S3_PROXY_UID = PROXY_UID + 2

test('everything that a taken over proxy could try fails, or gains nothing', { skip: skipReason }, async (t) => {
  const { attack, own, args } = await setUp(t)
  const attackFrom = (confinement: Confinement) => run(confine(confinement, ATTACK, [...args, 'own=/tmp']))

  const jailed = [await attackFrom(proxyConfinement(PROXY_UID)), await attackFrom(s3ProxyConfinement(S3_PROXY_UID))]
  const user = [`--reuid=${OTHER_UID}`, `--regid=${OTHER_UID}`, '--clear-groups', '--']
  const free = await run(['setpriv', [...user, attack, ...args, `own=${own}`]])

  for (const outcomes of jailed) {
    const refused = new Map([...outcomes].filter(([name]) => !HARMLESS.has(name)))
    assert.ok(refused.size >= 120, `${refused.size} attempts`)
    assert.deepEqual(listSuccesses(refused), [])
  }
  assert.deepEqual(listImpossible(free, POSSIBLE_WITHOUT), [])
})

async function run([command, args]: [string, string[]]): Promise<Outcomes> {
  return parseOutcomes((await runCommandOrThrow(command, args)).stdout)
}

async function setUp(t: TestContext): Promise<{ attack: string; own: string; args: string[] }> {
  const testNet = await TestNetwork.open({
    proxyUid: PROXY_UID,
    s3Proxy: { uid: S3_PROXY_UID, privateCidrs: [] },
  })
  t.after(() => testNet.close())
  const { folder, args } = await openTargets(t)
  const everywhere = createServer().listen(0, '0.0.0.0')
  t.after(() => everywhere.close())
  await once(everywhere, 'listening')
  const { port } = everywhere.address() as AddressInfo
  const abstract = `warren-attacked-${process.pid}`
  const abstractSocket = createServer().listen({ path: `\0${abstract}` })
  t.after(() => abstractSocket.close())
  await once(abstractSocket, 'listening')
  const { slot } = await testNet.addSandbox('100.64.0.10')
  const attack = path.join(folder, 'attack')
  cpSync(ATTACK, attack)
  const more = {
    port,
    address: UPLINK.address,
    flood: 1,
    netns: netnsPath(testNet.network.instance, slot),
    abstract,
  }
  const own = path.join(folder, 'own')
  mkdirSync(own)
  chownSync(own, OTHER_UID, OTHER_UID)
  return { attack, own, args: [...args, ...Object.entries(more).map(([key, value]) => `${key}=${value}`)] }
}
