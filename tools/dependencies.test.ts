/**
 * Each workspace declares exactly the packages that its files import, and the lock file pins every package by checksum.
 *
 * Hoisting lets a workspace import a package that only another workspace declares. That breaks when the other one drops
 * it, so undeclared imports fail here, and so do declared packages that no file imports.
 */
import assert from 'node:assert/strict'
import { globSync, readFileSync } from 'node:fs'
import { isBuiltin } from 'node:module'
import path from 'node:path'
import { test } from 'node:test'
import { parseImports } from './import-graph.ts'

const ROOT = path.resolve(import.meta.dirname, '..')
/** Both architectures are declared; npm installs the one that fits. */
const ARCHITECTURES = ['x64', 'arm64']

type Manifest = {
  name: string
  workspaces?: string[]
  dependencies?: Record<string, string>
  devDependencies?: Record<string, string>
  optionalDependencies?: Record<string, string>
}
type LockedPackage = { version?: string; integrity?: string; resolved?: string; link?: true }

const readJson = (file: string): unknown => JSON.parse(readFileSync(path.join(ROOT, file), 'utf8'))
const workspaces = (readJson('package.json') as Manifest).workspaces!

for (const workspace of workspaces) {
  test(`${workspace} declares what it imports and nothing else`, () => {
    const declared = listDeclared(readJson(`${workspace}/package.json`) as Manifest)
    const imported = listImported(workspace)

    const undeclared = [...imported].filter((name) => !declared.includes(name))
    const unused = declared.filter((name) => !imported.has(name.replace(/^@types\//, '')))

    assert.deepEqual({ undeclared, unused }, { undeclared: [], unused: [] })
  })
}

test('every package from the registry is locked with its checksum', () => {
  const lacking = listRegistryPackages().filter(([, locked]) => !/^sha512-/.test(locked.integrity ?? ''))

  assert.deepEqual(
    lacking.map(([place]) => place),
    [],
    'the registry has the checksum: `npm view NAME@VERSION dist.integrity`',
  )
})

test('the lock file names no registry', () => {
  const named = listRegistryPackages().filter(([, locked]) => locked.resolved !== undefined)

  assert.deepEqual(named, [], 'set omit-lockfile-registry-resolved=true, as .npmrc does, when npm writes the lock file')
})

function listDeclared(manifest: Manifest): string[] {
  const { dependencies, devDependencies, optionalDependencies } = manifest
  return Object.keys({ ...dependencies, ...devDependencies, ...optionalDependencies })
}

/** A package with binaries for one architecture, found by name at run time. */
const PER_ARCHITECTURE = /`(@?[\w/-]+-)\$\{process\.arch\}`/g

function listImported(workspace: string): Set<string> {
  const imported = new Set<string>()
  for (const file of globSync(`${workspace}/**/*.ts`, { cwd: ROOT, exclude: (name) => name === 'node_modules' })) {
    const source = readFileSync(path.join(ROOT, file), 'utf8')
    for (const { specifier } of parseImports(source)) {
      if (!specifier.startsWith('.') && !isBuiltin(specifier)) imported.add(packageOf(specifier))
    }
    for (const [, prefix] of source.matchAll(PER_ARCHITECTURE)) {
      for (const architecture of ARCHITECTURES) imported.add(`${prefix}${architecture}`)
    }
  }
  return imported
}

/** `kysely/migration` is in kysely, `@warren/kit/log` in @warren/kit. */
const packageOf = (specifier: string): string =>
  specifier
    .split('/')
    .slice(0, specifier.startsWith('@') ? 2 : 1)
    .join('/')

function listRegistryPackages(): [string, LockedPackage][] {
  const { packages } = readJson('package-lock.json') as { packages: Record<string, LockedPackage> }
  return Object.entries(packages).filter(([place, locked]) => place.includes('node_modules/') && !locked.link)
}
