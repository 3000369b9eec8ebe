import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type EgressSettings, listEgressWarnings } from './egress-warnings.ts'

const settings = (...privateCidrs: string[]): EgressSettings => ({ hostAddress: '169.254.1.1', privateCidrs })

test('a rule inside a closed range has a warning, unless the operator lets rules open it', () => {
  const rules = ['10.1.2.3:5432', '10.20.0.0/24', '192.168.7.7', 'db.internal', '1.2.3.4', '5.6.0.0/16:443', '*']

  assert.deepEqual(listEgressWarnings(rules, settings('10.20.0.0/16')), [
    '"10.1.2.3:5432" opens nothing: private, link-local and reserved addresses are closed except 10.20.0.0/16, and only the operator can open them (WARREN_EGRESS_PRIVATE_CIDRS)',
    '"192.168.7.7" opens nothing: private, link-local and reserved addresses are closed except 10.20.0.0/16, and only the operator can open them (WARREN_EGRESS_PRIVATE_CIDRS)',
  ])
})

test('a rule wider than what the operator opens has a warning, as it opens nothing', () => {
  assert.match(listEgressWarnings(['10.0.0.0/8'], settings('10.20.0.0/16'))[0]!, /^"10\.0\.0\.0\/8" opens nothing/)
})

test('a block with closed and public addresses opens only the public ones', () => {
  assert.deepEqual(listEgressWarnings(['0.0.0.0/0'], settings()), [
    '"0.0.0.0/0" opens only the public addresses in it: private, link-local and reserved addresses are closed, and only the operator can open them (WARREN_EGRESS_PRIVATE_CIDRS)',
  ])
})

test('the address of another sandbox points to private networks, and the address of the host has no warning', () => {
  const warnings = listEgressWarnings(['100.64.0.7', '169.254.1.1', '169.254.1.1:8080', '169.254.169.254'], settings())

  assert.equal(warnings.length, 2)
  assert.match(warnings[0]!, /^"100\.64\.0\.7" opens nothing: .*; sandboxes reach each other through private networks/)
  assert.match(warnings[1]!, /^"169\.254\.169\.254" opens nothing/)
})
