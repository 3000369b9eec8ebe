import assert from 'node:assert/strict'
import { test } from 'node:test'
import { parseCidr } from './cidr.ts'
import { isOfMachine, toMachineNetwork } from './machine.ts'

test('of the networks of a machine those outside the closed ranges are listed, without overlaps', () => {
  const connected = ['203.0.113.0/24', '192.168.1.0/24', '203.0.113.64/26', '172.17.0.0/16', '198.51.100.1/32']

  const machine = toMachineNetwork(['192.168.1.5', '9.8.7.6', '9.8.7.6'], connected.map(parseCidr))

  assert.deepEqual(machine, {
    addresses: ['9.8.7.6', '192.168.1.5'],
    subnets: ['198.51.100.1/32', '203.0.113.0/24'],
  })
  for (const inside of ['9.8.7.6', '203.0.113.255', '198.51.100.1']) assert.equal(isOfMachine(machine, inside), true)
  for (const outside of ['9.8.7.7', '203.0.114.0', '198.51.100.2']) assert.equal(isOfMachine(machine, outside), false)
})
