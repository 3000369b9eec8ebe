import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HOST_NETWORK_DEFAULT, type HostVmNetwork } from '@warren/protocol'
import type { Machine } from './machine.ts'
import { allowsAddress, allowsName, compilePolicy, narrows, type Policy } from './policy.ts'
import { MACHINE } from './testing/machine.ts'

const SETTINGS = { cidr: '100.64.0.0/16', privateCidrs: ['10.20.0.0/16'], machine: MACHINE }
const EMPTY = { anyPort: [], onePort: [] }
const policy = (egress: string[], networks: HostVmNetwork['networks'] = []): Policy =>
  compilePolicy({ ...HOST_NETWORK_DEFAULT, egress, networks }, SETTINGS)
const network = (id: string, members: Record<string, string>) => ({
  id: `net-${id.padEnd(26, '0')}`,
  members: Object.entries(members).map(([name, ip]) => ({ name, ip })),
})

test('each form of a rule allows exactly what it names', () => {
  const cases: [rule: string, address: string, port: number | undefined, allowed: boolean][] = [
    ['1.2.3.4', '1.2.3.4', 22, true],
    ['1.2.3.4', '1.2.3.4', undefined, true],
    ['1.2.3.4', '1.2.3.5', 22, false],
    ['1.2.3.4:22', '1.2.3.4', 22, true],
    ['1.2.3.4:22', '1.2.3.4', 23, false],
    ['1.2.3.4:22', '1.2.3.4', undefined, false],
    ['1.2.3.0/24', '1.2.3.255', 9, true],
    ['1.2.3.0/24', '1.2.4.0', 9, false],
    ['1.2.3.0/24:443', '1.2.3.9', 443, true],
    ['1.2.3.0/24:443', '1.2.3.9', 80, false],
    ['*', '1.2.3.4', 22, true],
    ['none', '1.2.3.4', 22, false],
    ['example.com', '1.2.3.4', 443, false],
  ]
  for (const [rule, address, port, allowed] of cases) {
    assert.equal(allowsAddress(policy([rule]), address, port), allowed, `${rule} and ${address}:${port}`)
  }
})

test('a private address needs both a rule that names it and the permission of the operator', () => {
  const closed = ['10.0.0.1', '169.254.169.254', '192.168.1.1', '100.64.0.9', '127.0.0.1', '224.0.0.1']
  for (const rules of [['*'], ['0.0.0.0/0'], ['8.0.0.0/5', '128.0.0.0/1'], closed]) {
    for (const address of closed) assert.equal(allowsAddress(policy(rules), address, 80), false, `${rules} ${address}`)
  }

  const named = policy(['10.20.1.0/24:5432', '*'])

  assert.equal(allowsAddress(named, '10.20.1.7', 5432), true)
  assert.equal(allowsAddress(named, '10.20.1.7', 22), false)
  assert.equal(allowsAddress(policy(['10.0.0.0/8']), '10.20.1.7', 5432), false)
  assert.equal(allowsAddress(policy(['0.0.0.0/0']), '10.20.1.7', 5432), false)
})

test('a host rule matches the exact name, a wildcard matches any depth below it but not the apex', () => {
  const rules = policy(['example.com', '*.wild.example:443', 'plain.example:80'])

  for (const name of ['example.com', 'a.wild.example', 'a.b.wild.example', 'plain.example']) {
    assert.equal(allowsName(rules, name), true, name)
  }
  for (const name of ['www.example.com', 'wild.example', 'notwild.example', 'example.com.evil', 'xexample.com', '']) {
    assert.equal(allowsName(rules, name), false, name)
  }
  assert.equal(allowsName(rules, 'a.wild.example', 80), false)
  assert.equal(allowsName(rules, 'plain.example', 80), true)
  assert.equal(allowsName(policy(['none']), 'example.com'), false)
  assert.equal(allowsName(policy([]), 'example.com', 443), true)
})

test('blocks that are contained in others are removed, per port', () => {
  const { rules } = policy([
    '9.0.0.0/8',
    '9.1.0.0/16',
    '9.1.2.3',
    '9.1.0.0/16:22',
    '9.1.2.3:22',
    '9.1.2.3:23',
    '8.8.8.8',
  ])

  assert.deepEqual(rules, {
    anyPort: [
      { address: '8.8.8.8', prefix: 32 },
      { address: '9.0.0.0', prefix: 8 },
    ],
    onePort: [
      { address: '9.1.0.0', prefix: 16, port: 22 },
      { address: '9.1.2.3', prefix: 32, port: 23 },
    ],
  })
})

test('members of networks are peers with names, whatever the rules are', () => {
  const { peers, names } = policy(
    ['none'],
    [network('A', { db: '100.64.0.2' }), network('B', { db: '100.64.0.3', web: '100.64.0.2' })],
  )

  assert.deepEqual(peers, ['100.64.0.2', '100.64.0.3'])
  assert.deepEqual({ ...names }, { db: ['100.64.0.2', '100.64.0.3'], web: ['100.64.0.2'] })
})

test('when two networks have members of the same name, the longer name distinguishes them', () => {
  const { names } = policy(
    [],
    [
      { ...network('A', { db: '100.64.0.2' }), name: 'blue' },
      { ...network('B', { db: '100.64.0.3' }), name: 'green' },
    ],
  )

  assert.deepEqual(names['db.blue.fc.local'], ['100.64.0.2'])
  assert.deepEqual(names['db.green.fc.local'], ['100.64.0.3'])
  assert.deepEqual(names.db, ['100.64.0.2', '100.64.0.3'])
})

test('a sandbox with rules reaches only DNS on the host, unless a rule names its address', () => {
  assert.equal(policy([]).hostPorts, 'all')
  assert.equal(policy(['169.254.1.1', '169.254.1.1:8080']).hostPorts, 'all')
  assert.equal(policy(['169.254.0.0/16']).hostPorts, 'all')
  assert.deepEqual(policy(['169.254.1.1:8080', '169.254.1.0/24:80', '9.9.9.9:9']).hostPorts, [80, 8080])
  for (const other of ['none', 'shop.example', '0.0.0.0/0', '169.254.0.0/15', '169.254.1.2', '169.254.169.254']) {
    assert.deepEqual(policy([other]).hostPorts, [], other)
  }
})

test('a rule about the host opens no other link-local address', () => {
  const { rules, granted } = policy(['169.254.0.0/16', '169.254.1.1'])

  assert.deepEqual([rules, granted], [EMPTY, EMPTY])
})

test('closing a port of the host narrows the rules, opening one does not', () => {
  const one = policy(['169.254.1.1:8080'])

  assert.equal(narrows(one, policy(['none'])), true)
  assert.equal(narrows(policy(['169.254.1.1']), one), true)
  assert.equal(narrows(one, policy(['169.254.1.1'])), false)
})

test('addresses and networks of this machine are closed, unless the operator allows a block that a rule names', () => {
  const wide = { ...MACHINE, api: { port: 8080, beyondLoopback: true } }
  const on = (machine: Machine, egress: string[], privateCidrs: string[] = []) =>
    compilePolicy({ ...HOST_NETWORK_DEFAULT, egress }, { ...SETTINGS, privateCidrs, machine })
  const open = on(MACHINE, [])
  const granted = on(MACHINE, ['198.51.100.0/24'], ['198.51.100.0/24'])

  assert.equal(allowsAddress(open, '198.51.100.7', 443), true)
  assert.equal(allowsAddress(open, '198.51.100.200', 443), false)
  assert.equal(allowsAddress(open, '198.51.100.130', 8080), false)
  assert.equal(allowsAddress(on(MACHINE, ['198.51.100.200']), '198.51.100.200', 443), false)
  assert.equal(allowsAddress(granted, '198.51.100.200', 443), true)
  assert.equal(allowsAddress(granted, '198.51.100.130', 22), false)
  assert.equal(allowsAddress(on(wide, []), '198.51.100.130', 8080), true)
  assert.equal(allowsAddress(on(wide, []), '198.51.100.130', 22), false)
  assert.equal(allowsAddress(on(wide, []), '192.168.1.5', 8080), false)
  assert.equal(allowsAddress(on(wide, ['1.2.3.4']), '198.51.100.130', 8080), false)
  for (const range of ['198.19.255.255', '168.63.129.16']) assert.equal(allowsAddress(open, range, 80), false)
  assert.equal(narrows(open, on(wide, [])), true)
})

test('an invalid rule is an error', () => {
  assert.throws(() => policy(['http://x']), /invalid egress rule: "http:\/\/x"/)
})

test('a recharge, a new member and an open policy do not narrow the rules; other changes may', () => {
  const rules = policy(['1.2.3.4', 'shop.example'])

  assert.equal(narrows(rules, { ...rules, quotaBytes: 1, revision: 9, peers: ['100.64.0.2'] }), false)
  assert.equal(narrows(rules, policy([])), false)
  assert.equal(narrows(policy([]), policy([])), false)
  assert.equal(narrows(policy([]), rules), true)
  assert.equal(narrows(rules, policy(['1.2.3.4'])), true)
  assert.equal(narrows(policy(['*', '10.20.0.1']), policy(['*'])), true)
})
