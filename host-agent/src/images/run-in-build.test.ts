import assert from 'node:assert/strict'
import { test } from 'node:test'
import { countPackages } from './run-in-build.ts'

const APT = `The following NEW packages will be installed:
  libc6 zlib1g
0 upgraded, 2 newly installed, 0 to remove and 0 not upgraded.
Unpacking libc6:amd64 (2.41-12) ...
`

test('the progress of apt is the share of packages that are unpacked and set up', () => {
  assert.equal(countPackages('Get:1 http://mirror.example trixie/main libc6'), undefined)
  assert.equal(countPackages(APT), 25)
  assert.equal(countPackages(`${APT}Unpacking zlib1g ...\nSetting up libc6 ...\n`), 75)
})

test('the packages of several runs of apt are added up, and more lines than packages are not more than all', () => {
  assert.equal(countPackages(`${APT}${APT}`), 25)
  assert.equal(countPackages(APT + 'Setting up libc6 ...\n'.repeat(9)), 100)
})
