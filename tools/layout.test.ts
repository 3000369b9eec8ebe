/** Who may import whom (docs/architecture.md). The arrows point one way, and this keeps them so. */
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'

const ROOT = path.resolve(import.meta.dirname, '..')

const MAY_IMPORT: Record<string, string[]> = {
  protocol: [],
  kit: ['protocol'],
  'control-plane': ['protocol', 'kit'],
  'host-agent': ['protocol', 'kit'],
  warren: ['protocol', 'kit'],
  bench: ['protocol', 'kit', 'control-plane', 'host-agent'],
  e2e: ['protocol', 'kit'],
  tools: ['kit', 'control-plane', 'host-agent', 'warren'],
}
/** It runs anywhere, in a browser too. */
const PROTOCOL_PACKAGES = ['typebox']

const sources = globSync('{*/src/**,tools}/*.ts', { cwd: ROOT }).filter((file) => !file.includes('node_modules'))
/** The line that names the module: of a one-line import, the last of a longer one, or a dynamic import. */
const IMPORT = /^(?:(?:import|export|\})[^'\n]* from |import )'([^']+)'$|\bimport\('([^']+)'\)/gm
const importsOf = (file: string) =>
  [...readFileSync(path.join(ROOT, file), 'utf8').matchAll(IMPORT)].map((match) => (match[1] ?? match[2])!)

test('a workspace imports only what lies below it', () => {
  const wrong = sources.flatMap((file) => {
    const home = file.split('/')[0]!
    return importsOf(file)
      .map((specifier) => workspaceOf(file, specifier))
      .filter((target) => target !== undefined && target !== home && !MAY_IMPORT[home]?.includes(target))
      .map((target) => `${file} imports ${target}`)
  })

  assert.deepEqual(wrong, [])
})

test('the protocol needs typebox and nothing else', () => {
  const wrong = sources
    .filter((file) => file.startsWith('protocol/') && !file.endsWith('.test.ts'))
    .flatMap((file) => importsOf(file).map((specifier) => ({ file, specifier })))
    .filter(({ specifier }) => !specifier.startsWith('.') && !PROTOCOL_PACKAGES.includes(specifier.split('/')[0]!))

  assert.deepEqual(wrong, [])
})

test("no feature reaches into another's routes", () => {
  const wrong = sources
    .filter((file) => !/(app|main)\.ts$/.test(file))
    .flatMap((file) => importsOf(file).map((specifier) => `${file} imports ${specifier}`))
    .filter((line) => /\/routes\.ts$/.test(line))

  assert.deepEqual(wrong, [])
})

/** A relative path that leaves the workspace counts as an import of where it leads. */
function workspaceOf(file: string, specifier: string): string | undefined {
  if (specifier.startsWith('@warren/')) return specifier.split('/')[1]
  if (!specifier.startsWith('.')) return undefined
  return path.join(path.dirname(file), specifier).split('/')[0]
}
