import assert from 'node:assert/strict'
import { test } from 'node:test'
import { closePackages, type Package, parseNames, parseWanted } from './search-path.ts'

const packageOf = (name: string, more: Partial<Package> = {}): [string, Package] => [
  name,
  { name, qualified: name, isBase: false, depends: [], provides: [], ...more },
]

test('a program is visible only with a package of the base, a wanted one or one that these depend on', () => {
  const installed = new Map([
    packageOf('dash', { isBase: true, depends: ['libc6'] }),
    packageOf('libc6'),
    packageOf('skopeo', { depends: ['storage-config'] }),
    packageOf('containers-storage', { provides: ['storage-config'], depends: ['skopeo'] }),
    packageOf('strace', { depends: ['libunwind8'] }),
    packageOf('libunwind8'),
  ])

  const closed = closePackages(installed, ['skopeo', 'not-installed'])

  assert.deepEqual([...closed].sort(), ['containers-storage', 'dash', 'libc6', 'skopeo'])
})

test('the names of a relation include all alternatives', () => {
  assert.deepEqual(parseNames('libc6 (>= 2.36), mawk | awk, python3:any'), ['libc6', 'mawk', 'awk', 'python3'])
  assert.deepEqual(parseNames(''), [])
})

test('what the set-up wants names a package, and a program unless it looks for a file', () => {
  assert.deepEqual(parseWanted('cargo cargo\nlibc6-dev /usr/lib/libc.a\npython3-venv\n'), [
    { name: 'cargo', program: 'cargo' },
    { name: 'libc6-dev' },
    { name: 'python3-venv' },
  ])
})
