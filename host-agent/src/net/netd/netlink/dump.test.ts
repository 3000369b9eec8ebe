/** The kernel returns long lists in parts, and other programs may change a list meanwhile. On a network namespace of this test. */
import assert from 'node:assert/strict'
import { closeSync, openSync } from 'node:fs'
import { after, before, test } from 'node:test'
import { interfaceIndex } from '../../../ffi/socket.ts'
import { moveToFreshHost, skipReason } from '../../testing/host.ts'
import type { Response } from './message.ts'
import { createVeth, deleteLink, listLinks, parseLink } from './route.ts'
import { NetlinkSocket } from './socket.ts'

/** A part has room for about twenty. */
const PAIRS = 50

let netns: number

if (skipReason === false) {
  before(async () => {
    await moveToFreshHost()
    netns = openSync('/proc/thread-self/ns/net', 'r')
    using socket = new NetlinkSocket()
    for (let pair = 0; pair < PAIRS; pair++) addPair(socket, pair)
  })
  after(() => closeSync(netns))
}

/** Between the parts of a list, another program changes it. */
class Interrupted extends NetlinkSocket {
  readonly #change: (part: number) => void
  parts = 0

  constructor(change: (part: number) => void) {
    super()
    this.#change = change
  }

  protected override receive(): Response[] {
    const responses = super.receive()
    this.#change(++this.parts)
    return responses
  }
}

test('a list that changes while it is read is read again', { skip: skipReason }, () => {
  using other = new NetlinkSocket()
  using socket = new Interrupted((part) => part === 1 && removePair(other, 0))

  const names = socket.dump('list links', listLinks()).map((response) => parseLink(response).name)

  assert.ok(socket.parts > 2, `${socket.parts} parts`)
  assert.ok(!names.includes('a0') && !names.includes('b0'))
  assert.equal(new Set(names).size, names.length)
  assert.equal(names.length, 2 * (PAIRS - 1) + 1) // And the loopback interface.
})

test('a list that changes all the time is an error, and the socket stays usable', { skip: skipReason }, () => {
  using other = new NetlinkSocket()
  let isChanging = true
  using socket = new Interrupted((part) => {
    if (isChanging) (part % 2 === 1 ? addPair : removePair)(other, PAIRS)
  })

  assert.throws(() => socket.dump('list links', listLinks()), /list links: EINTR/)

  isChanging = false
  assert.ok(socket.dump('list links', listLinks()).length > PAIRS)
})

function addPair(socket: NetlinkSocket, pair: number): void {
  socket.change('add a pair', createVeth({ name: `a${pair}`, peerName: `b${pair}`, peerNetnsFd: netns, mtu: 1400 }))
}

function removePair(socket: NetlinkSocket, pair: number): void {
  socket.change('remove a pair', deleteLink(interfaceIndex(`a${pair}`)))
}
