import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { chmodSync, chownSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import {
  CAPABILITIES,
  type Capability,
  type CapableProcess,
  capabilityMask,
  hasNoNewPrivileges,
  listCapabilities,
  withCapabilities,
} from './capabilities.ts'

const skip = process.getuid?.() === 0 ? false : 'needs root'
const PRIVATE_OWNER = 654_321

for (const name of Object.keys(CAPABILITIES) as CapableProcess[]) {
  test(`a program that is started like ${name} has what the table grants and can get nothing else`, { skip }, () => {
    const program = import.meta.filename
    const [command, args] = withCapabilities(name, program, 'cat', ['/proc/self/status'])

    const status = readSets(execFileSync(command, args, { encoding: 'utf8' }))

    // A container may have fewer.
    const own = readSets(readFileSync('/proc/self/status', 'utf8'))
    const granted = capabilityMask(listCapabilities(name, program)) & own.CapBnd!
    assert.deepEqual(status, {
      ...{ CapBnd: granted, CapPrm: granted, CapEff: granted, CapInh: 0n, CapAmb: 0n },
      NoNewPrivs: hasNoNewPrivileges(name) ? 1n : own.NoNewPrivs,
    })
  })
}

test('a child is granted nothing that its parent, the host agent, lacks', () => {
  const grants: Record<CapableProcess, object> = CAPABILITIES
  for (const [name, grant] of Object.entries(grants)) {
    const missing = Object.keys(grant).filter((one) => !(one in CAPABILITIES.hostAgent))
    assert.deepEqual(missing, [], name)
  }
})

test('code that only another user can read can be read, and where root can read it nothing is added', { skip }, (t) => {
  const { shared, secret } = makePrograms(t)

  for (const program of [shared, secret]) {
    const [command, args] = withCapabilities('netd', program, 'cat', [program])
    assert.equal(execFileSync(command, args, { encoding: 'utf8' }), 'code')
  }

  const plain: Capability[] = ['net_admin', 'sys_admin']
  assert.deepEqual(listCapabilities('netd', shared), plain)
  assert.deepEqual(listCapabilities('netd', secret), [...plain, 'dac_read_search'])
})

function makePrograms(t: TestContext): { shared: string; secret: string } {
  const folder = mkdtempSync(path.join(tmpdir(), 'warren-capabilities-'))
  t.after(() => rmSync(folder, { recursive: true }))
  const home = path.join(folder, 'home')
  mkdirSync(home)
  const [shared, secret] = [path.join(folder, 'main.ts'), path.join(home, 'main.ts')]
  for (const file of [shared, secret]) writeFileSync(file, 'code')
  chmodSync(home, 0o700)
  chownSync(home, PRIVATE_OWNER, PRIVATE_OWNER)
  return { shared, secret }
}

const readSets = (status: string): Record<string, bigint> =>
  Object.fromEntries(
    [...status.matchAll(/^(Cap\w+|NoNewPrivs):\t(\w+)$/gm)].map(([, name, value]) => [name, BigInt(`0x${value}`)]),
  )
