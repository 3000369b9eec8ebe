import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import { HOST_NETWORK_DEFAULT, HostVmNetwork, HostVmNetworkReport } from './host-network.ts'

test('the default network is valid', () => {
  assert.equal(Value.Check(HostVmNetwork, HOST_NETWORK_DEFAULT), true)
})

test('a network without a quota or with an invalid address is refused', () => {
  const { bandwidth: _, ...without } = HOST_NETWORK_DEFAULT
  const members = [{ ip: 'db', name: 'db' }]

  assert.equal(Value.Check(HostVmNetwork, without), false)
  assert.equal(
    Value.Check(HostVmNetwork, {
      ...HOST_NETWORK_DEFAULT,
      networks: [{ id: 'net-01K0000000000000000000000A', members }],
    }),
    false,
  )
})

test('a report contains only the listed reasons', () => {
  const decision = { at: '2026-01-01T00:00:00.000Z', via: 'dns', destination: 'x.example', protocol: 'udp', count: 1 }
  const report = (reason: string) => ({
    revision: 1,
    bandwidth: { quota_bytes: -1, used_bytes: 0, ingress_bytes: 0, capped: false },
    decisions: [{ ...decision, reason }],
    flows: [],
  })

  assert.equal(Value.Check(HostVmNetworkReport, report('not_allowed')), true)
  assert.equal(Value.Check(HostVmNetworkReport, report('unknown_reason')), false)
})
