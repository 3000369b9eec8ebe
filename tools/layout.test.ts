/** Checks which workspaces, folders and files may import which (docs/architecture.md), and that no imports form a cycle. */
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { buildValueGraph, findCycles, parseImports } from './import-graph.ts'

const ROOT = path.resolve(import.meta.dirname, '..')

const MAY_IMPORT: Record<string, string[]> = {
  protocol: [],
  dockerfile: [],
  kit: ['protocol'],
  'control-plane': ['protocol', 'kit', 'dockerfile'],
  'host-agent': ['protocol', 'kit', 'dockerfile'],
  gateway: ['protocol', 'kit', 'dockerfile'],
  cli: ['protocol', 'kit'],
  bench: ['protocol', 'kit', 'control-plane', 'host-agent', 'gateway'],
  e2e: ['protocol', 'kit'],
  tools: ['kit', 'control-plane', 'host-agent', 'gateway', 'cli'],
}
/** The protocol must also run in a browser, so it may depend on nothing else. */
const PROTOCOL_PACKAGES = ['typebox']

const sources = globSync('{*/src,tools}/**/*.ts', { cwd: ROOT }).filter((file) => !file.includes('node_modules'))
const importsOf = (file: string) =>
  parseImports(readFileSync(path.join(ROOT, file), 'utf8')).map(({ specifier }) => specifier)

test('a workspace imports only the workspaces that MAY_IMPORT lists for it', () => {
  const wrong = sources.flatMap((file) => {
    const home = file.split('/')[0]!
    return importsOf(file)
      .map((specifier) => workspaceOf(file, specifier))
      .filter((target) => target !== undefined && target !== home && !MAY_IMPORT[home]?.includes(target))
      .map((target) => `${file} imports ${target}`)
  })

  assert.deepEqual(wrong, [])
})

test('the protocol imports no package but typebox', () => {
  const wrong = sources
    .filter((file) => file.startsWith('protocol/') && !file.endsWith('.test.ts'))
    .flatMap((file) => importsOf(file).map((specifier) => ({ file, specifier })))
    .filter(({ specifier }) => !specifier.startsWith('.') && !PROTOCOL_PACKAGES.includes(specifier.split('/')[0]!))

  assert.deepEqual(wrong, [])
})

test("a feature does not import another feature's routes", () => {
  const wrong = sources
    .filter((file) => !/(app|main)\.ts$/.test(file))
    .flatMap((file) => importsOf(file).map((specifier) => `${file} imports ${specifier}`))
    .filter((line) => /\/routes\.ts$/.test(line))

  assert.deepEqual(wrong, [])
})

/** Folders with the code of a separate process: the host agent starts its main.ts and imports nothing of it. */
const PROCESS_FOLDERS = [
  'host-agent/src/net/netd/',
  'host-agent/src/net/egress-proxy/',
  'host-agent/src/vmm/launcher/',
  'host-agent/src/disks/s3-proxy/',
]
/** The bench compares netd with the `nft` command, for which it renders the same rules. */
const BENCH_RENDERERS = /^host-agent\/src\/net\/netd\/nft\//

test('the folder of another process is imported only from inside, and by test helpers', () => {
  const wrong = sources
    .filter((file) => !isTestHelper(file))
    .flatMap((file) => filesImportedBy(file).map((target) => ({ file, target })))
    .filter(({ file, target }) =>
      PROCESS_FOLDERS.some((folder) => target.startsWith(folder) && !file.startsWith(folder)),
    )
    .filter(({ file, target }) => !(file.startsWith('bench/src/net/') && BENCH_RENDERERS.test(target)))
    .map(({ file, target }) => `${file} imports ${target}`)

  assert.deepEqual(wrong, [])
})

const FFI_FOLDER = 'host-agent/src/ffi/'
/** A crash in FFI kills the process, so only processes that the host agent can restart use it. The egress proxy does not. */
const FFI_USERS = [
  'host-agent/src/net/netd/',
  'host-agent/src/vmm/launcher/',
  'host-agent/src/vmm/kvm-probe/main.ts',
  FFI_FOLDER,
]

test('FFI is used only in the ffi folder, and that only by restartable processes and test helpers', () => {
  const wrong = sources
    .flatMap((file) => importsOf(file).map((specifier) => ({ file, specifier })))
    .filter(({ file, specifier }) => {
      if (specifier === 'koffi') return !file.startsWith(FFI_FOLDER)
      if (!resolveImport(file, specifier)?.startsWith(FFI_FOLDER)) return false
      return !isTestHelper(file) && !FFI_USERS.some((folder) => file.startsWith(folder))
    })
    .map(({ file, specifier }) => `${file} imports ${specifier}`)

  assert.deepEqual(wrong, [])
})

test('a test waits for a condition (until), or says why time must pass (passTime)', () => {
  const wrong = sources
    .filter((file) => file.endsWith('.test.ts') && file !== 'tools/layout.test.ts')
    .filter((file) => /(?<![.\w])setTimeout\b/.test(readFileSync(path.join(ROOT, file), 'utf8')))

  assert.deepEqual(wrong, [])
})

const isTestHelper = (file: string): boolean => /\/testing\/|\/testing\.ts$/.test(file)

const resolveImport = (file: string, specifier: string): string | undefined =>
  specifier.startsWith('.') ? path.join(path.dirname(file), specifier) : undefined

const filesImportedBy = (file: string): string[] =>
  importsOf(file).flatMap((specifier) => resolveImport(file, specifier) ?? [])

test('values are imported without cycles', () => {
  const cycles = findCycles(buildValueGraph(ROOT, sources)).map((cycle) => cycle.join('\n  imports '))

  const advice = 'Move the shared value into a file that both import, or use `import type` where it is only a type.'
  assert.equal(cycles.length, 0, `${cycles.join('\n')}\n${advice}`)
})

test('parseImports tells values from types', () => {
  const source = `
import type { A } from './type-only.ts'
import type B from './type-default.ts'
import type * as C from './type-namespace.ts'
import { type D, type E } from './all-types.ts'
import { type F, g } from './mixed.ts'
import {
  type H,
  type I,
  j,
} from './mixed-lines.ts'
import k, { type L } from './default-and-type.ts'
import * as m from './namespace.ts'
import './side-effect.ts'
import { type as n } from './value-called-type.ts'
export type { O } from './type-export.ts'
export { type P, q } from './mixed-export.ts'
export * from './all.ts'
const r = await import('./dynamic.ts')
`
  const imports = parseImports(source)
  const filesOf = (isValue: boolean) =>
    imports.filter((one) => one.isValue === isValue).map(({ specifier }) => specifier.slice(2, -3))

  assert.deepEqual(filesOf(false), ['type-only', 'type-default', 'type-namespace', 'all-types', 'type-export'])
  assert.deepEqual(filesOf(true), [
    'mixed',
    'mixed-lines',
    'default-and-type',
    'namespace',
    'value-called-type',
    'mixed-export',
    'all',
    'side-effect',
    'dynamic',
  ])
})

test('findCycles reports one shortest cycle for each group of files that import each other', () => {
  const graph = new Map([
    ['a', new Set(['b', 'd'])],
    ['b', new Set(['c'])],
    ['c', new Set(['a'])],
    ['d', new Set(['e'])],
    ['e', new Set(['e'])],
    ['f', new Set(['a'])],
  ])

  assert.deepEqual(findCycles(graph), [
    ['e', 'e'],
    ['a', 'b', 'c', 'a'],
  ])
})

/** Counts a relative path that leaves the workspace as an import of the workspace where it ends. */
function workspaceOf(file: string, specifier: string): string | undefined {
  if (specifier.startsWith('@warren/')) return specifier.split('/')[1]
  if (!specifier.startsWith('.')) return undefined
  return path.join(path.dirname(file), specifier).split('/')[0]
}
