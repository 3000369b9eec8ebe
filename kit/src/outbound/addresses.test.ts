import assert from 'node:assert/strict'
import { test } from 'node:test'
import { ConfigError, readConfig } from '../config.ts'
import { DISK_PRIVATE_CIDRS } from '../shared-settings.ts'
import { checkAddressBlocks, createAddressPolicy } from './addresses.ts'

test('an operator opens blocks of both families; a typing error prevents the start', () => {
  assert.equal(checkAddressBlocks(['10.20.0.0/16', '192.168.1.1', 'fd00::/8', '0.0.0.0/0']), undefined)
  for (const wrong of ['10.0.0.0/33', '10.0.0.0/', '10.0.0.0/-1', 'fd00::/129', 'example.com', '10.0/8']) {
    assert.match(checkAddressBlocks(['10.20.0.0/16', wrong]) ?? '', /^must be a list of address blocks/, wrong)
    assert.throws(() => createAddressPolicy([wrong]), /is not an address block/, wrong)
  }
  const read = () => readConfig({ cidrs: DISK_PRIVATE_CIDRS }, { WARREN_DISK_PRIVATE_CIDRS: '10.0.0.0/8,store' })
  assert.throws(
    read,
    (error) => error instanceof ConfigError && /WARREN_DISK_PRIVATE_CIDRS .*"store"/.test(error.message),
  )
})
