import assert from 'node:assert/strict'
import { test } from 'node:test'
import { nextOffsets, parseCidr, renderAddress } from './addresses.ts'

const addresses = (cidr: string, cursor: number, count: number) => {
  const block = parseCidr(cidr)!
  return nextOffsets(block, cursor, count).map((offset) => renderAddress(block.base + offset))
}

test('addresses follow the cursor and wrap around, without the first, the last four, .0 and .255', () => {
  assert.deepEqual(addresses('100.64.0.0/16', 0, 2), ['100.64.0.1', '100.64.0.2'])
  assert.deepEqual(addresses('100.64.0.0/16', 254, 2), ['100.64.0.254', '100.64.1.1'])
  assert.deepEqual(addresses('100.64.0.0/16', 65_531, 2), ['100.64.255.251', '100.64.0.1'])
  assert.deepEqual(addresses('10.0.0.16/28', 10, 3), ['10.0.0.26', '10.0.0.27', '10.0.0.17'])
})

test('each usable address is returned once, however many are requested', () => {
  assert.equal(addresses('10.0.0.16/28', 5, 100).length, 11)
  assert.equal(new Set(addresses('10.0.0.16/28', 5, 100)).size, 11)
})

test('text that is not a CIDR block is rejected', () => {
  for (const text of ['', 'x', '10.0.0.0', '10.0.0.0/30', '10.0.0.0/4', '10.0.0.256/24']) {
    assert.equal(parseCidr(text), undefined, text)
  }
})
