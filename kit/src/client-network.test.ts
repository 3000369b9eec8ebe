import assert from 'node:assert/strict'
import { test } from 'node:test'
import { clientNetwork } from './client-network.ts'

test('IPv6 addresses of one /64 count together, others separately', () => {
  const cases: [address: string, network: string][] = [
    ['2001:db8:1:2::1', '2001:db8:1:2::/64'],
    ['2001:db8:1:2:ffff:ffff:ffff:ffff', '2001:db8:1:2::/64'],
    ['2001:0DB8:0001:0002:0:0:0:9', '2001:db8:1:2::/64'],
    ['2001:db8:1:3::1', '2001:db8:1:3::/64'],
    ['2001:db8::1', '2001:db8:0:0::/64'],
    ['fe80::1%eth0', 'fe80:0:0:0::/64'],
    ['::1', '0:0:0:0::/64'],
    ['64:ff9b::192.0.2.1', '64:ff9b:0:0::/64'],
  ]
  for (const [address, network] of cases) assert.equal(clientNetwork(address), network, address)
})

test('an IPv4 address counts alone, also when it is mapped to IPv6', () => {
  for (const address of ['192.0.2.1', '::ffff:192.0.2.1', '::FFFF:c000:201', '0:0:0:0:0:ffff:192.0.2.1']) {
    assert.equal(clientNetwork(address), '192.0.2.1', address)
  }
})

test('what is not an address is its own key', () => {
  for (const text of ['', 'unknown', ':', '2001:db8', '[::1]', '::ffff:1.2.3.999'])
    assert.equal(clientNetwork(text), text)
})
