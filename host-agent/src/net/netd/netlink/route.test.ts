import assert from 'node:assert/strict'
import { test } from 'node:test'
import { attribute, parseMessages, renderMessage } from './message.ts'
import {
  addAddress,
  addBlackhole,
  addDefaultRoute,
  addLinkRoute,
  addNeighbour,
  createVeth,
  parseLink,
  parseReceivedPackets,
  parseRoute,
  ROUTE_PROTOCOL,
  setLinkUp,
} from './route.ts'

const hex = (text: string) => text.replace(/\s+/g, '')

test('a message has its length, type, flags and sequence number and is padded to 4 bytes', () => {
  const bytes = renderMessage({ type: 16, flags: 0x400, body: Buffer.from([1, 2, 3]) }, 7)

  assert.equal(bytes.toString('hex'), hex('13000000 1000 0104 07000000 00000000 010203 00'))
  assert.deepEqual(parseMessages(bytes)[0], { type: 16, flags: 0x401, sequence: 7, body: Buffer.from([1, 2, 3]) })
  assert.throws(() => parseMessages(bytes.subarray(0, 18)), /truncated message/)
})

test('a veth request names both ends, their MTU and the namespace of the peer', () => {
  const { type, flags, body } = createVeth({ name: 'v0', peerName: 'w1', peerNetnsFd: 9, mtu: 1400 })

  assert.deepEqual([type, flags], [16, 0x600])
  assert.equal(
    body.toString('hex'),
    hex(`00000000 00000000 01000000 01000000
         0700 0300 763000 00   0800 0400 78050000
         4000 1280  0900 0100 7665746800 000000
           3000 0280  2c00 0180  00000000 00000000 00000000 00000000
             0700 0300 773100 00   0800 0400 78050000   0800 1c00 09000000`),
  )
})

test('an address is added to its interface, and a link-local one with link scope', () => {
  assert.equal(
    addAddress(5, '172.30.0.1', 30).body.toString('hex'),
    hex('02 1e 00 00 05000000  0800 0200 ac1e0001  0800 0100 ac1e0001'),
  )
  assert.equal(addAddress(5, '169.254.1.1', 32).body.readUInt8(3), 253)
  assert.throws(() => addAddress(5, '1.2.3', 32), /not an IPv4 address/)
})

test('a neighbour has its MAC address for good', () => {
  assert.equal(
    addNeighbour(4, '100.64.0.1', '02:00:00:00:00:03').body.toString('hex'),
    hex('02 000000 04000000 8000 00 00  0800 0100 64400001  0a00 0200 020000000003 0000'),
  )
})

test('routes to a link, through a gateway and into a blackhole are rendered', () => {
  assert.equal(
    addLinkRoute(4, '100.64.0.1').body.toString('hex'),
    hex('02 20 00 00 fe 57 fd 01 00000000  0800 0100 64400001  0800 0400 04000000'),
  )
  assert.equal(
    addDefaultRoute(4, '169.254.1.1').body.toString('hex'),
    hex('02 00 00 00 fe 57 00 01 00000000  0800 0400 04000000  0800 0500 a9fe0101'),
  )
  assert.equal(
    addBlackhole('100.64.0.0', 16, 0xdeadbeef).body.toString('hex'),
    hex('02 10 00 00 fe 57 00 06 00000000  0800 0100 64400000  0800 0600 efbeadde'),
  )
})

test('links and routes of a dump are parsed', () => {
  const response = (body: Buffer) => ({ type: 0, flags: 0, sequence: 0, body })
  const several = Buffer.from(
    hex(`02 00 00 00 fe 03 00 01 00000000  2400 0900
         1000 00 00 02000000 0800 0500 c6120001  1000 00 00 03000000 0800 0500 c6120101`),
    'hex',
  )

  assert.deepEqual(parseRoute(response(addBlackhole('100.64.0.0', 16, 0xdeadbeef).body)), {
    address: '100.64.0.0',
    prefix: 16,
    type: 'blackhole',
    protocol: ROUTE_PROTOCOL,
    scopeLink: false,
    metric: 0xdeadbeef,
    interfaceIndexes: [],
  })
  assert.deepEqual(parseRoute(response(several))?.interfaceIndexes, [2, 3])
  const local = Buffer.from(several)
  local.writeUInt8(255, 4)
  assert.equal(parseRoute(response(local)), undefined)
  assert.deepEqual(parseLink(response(setLinkUp(3, 1400).body)), { index: 3, name: '', mtu: 1400 })
})

test('the packets that a link has received are the first of its counters', () => {
  const header = setLinkUp(3).body
  const counters = Buffer.alloc(24 * 8)
  counters.writeBigUInt64LE(7n, 0)
  counters.writeBigUInt64LE(9n, 8)
  const response = (body: Buffer) => parseMessages(renderMessage({ type: 16, flags: 0, body }, 1))[0]!

  assert.equal(parseReceivedPackets(response(Buffer.concat([header, attribute(23, counters)]))), 7n)
  assert.equal(parseReceivedPackets(response(header)), undefined)
})
