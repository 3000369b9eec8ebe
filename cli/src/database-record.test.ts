import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { cp, mkdir, mkdtemp, readdir, rename, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { checkDatabaseFolder, recordDatabase } from './database-record.ts'

async function setUp(t: TestContext) {
  const home = await mkdtemp(path.join(tmpdir(), 'warren-database-record-'))
  t.after(() => rm(home, { recursive: true }))
  const [dataDir, volume] = [path.join(home, 'data'), path.join(home, 'volume')]
  for (const folder of [dataDir, volume]) await mkdir(folder)
  const [inside, outside] = [
    { dataDir, databaseDir: dataDir },
    { dataDir, databaseDir: volume },
  ]
  return { home, dataDir, volume, inside, outside }
}

/** The files of a database that say which one it is. */
async function createDatabase(databaseDir: string, identifier: bigint): Promise<void> {
  const control = Buffer.alloc(8192)
  control.writeBigUInt64LE(identifier)
  await mkdir(path.join(databaseDir, 'postgres', 'global'), { recursive: true })
  await writeFile(path.join(databaseDir, 'postgres', 'PG_VERSION'), '18\n')
  await writeFile(path.join(databaseDir, 'postgres', 'global', 'pg_control'), control)
}

async function createSandbox(dataDir: string, folder: string): Promise<void> {
  await mkdir(path.join(dataDir, folder), { recursive: true })
  await writeFile(path.join(dataDir, folder, 'sb-1.json'), '{}')
}

test('a start without the variable does not create a second database', async (t) => {
  const { dataDir, volume, inside, outside } = await setUp(t)
  checkDatabaseFolder(outside)
  await createDatabase(volume, 1n)
  await recordDatabase(outside)

  checkDatabaseFolder(outside)
  assert.throws(() => checkDatabaseFolder(inside), {
    message: `the database is in ${volume}/postgres, and WARREN_DATABASE_DIR is not set; set it to ${volume}, or move the folder to ${dataDir}`,
  })
})

test('a volume that is not mounted is named, and nothing is created on it', async (t) => {
  const { volume, outside } = await setUp(t)
  await createDatabase(volume, 1n)
  await recordDatabase(outside)
  await rm(path.join(volume, 'postgres'), { recursive: true })

  assert.throws(() => checkDatabaseFolder(outside), {
    message: `the database is not in ${volume}/postgres, where it was; mount its volume, or restore it from the back-up`,
  })
  assert.deepEqual(await readdir(volume), [])
})

test('a data directory that was restored without its database is not used', async (t) => {
  const { home, volume, dataDir, outside } = await setUp(t)
  await createDatabase(volume, 1n)
  await recordDatabase(outside)
  const restored = path.join(home, 'restored')
  await rename(dataDir, restored)
  await rm(path.join(volume, 'postgres'), { recursive: true })

  assert.throws(() => checkDatabaseFolder({ dataDir: restored, databaseDir: restored }), {
    message: new RegExp(`^the database was in ${volume}/postgres, and is neither there nor in ${restored}/postgres; `),
  })
})

test('the database of another data directory is not used', async (t) => {
  const { volume, dataDir, inside, outside } = await setUp(t)
  await createDatabase(dataDir, 1n)
  await recordDatabase(inside)
  await createDatabase(volume, 2n)

  assert.throws(() => checkDatabaseFolder(outside), {
    message: new RegExp(`^${volume}/postgres is another database than that of ${dataDir}`),
  })
})

test('a database may move, also with its data directory, but not exist twice', async (t) => {
  const { home, volume, dataDir, inside, outside } = await setUp(t)
  await createDatabase(dataDir, 1n)
  await recordDatabase(inside)
  await cp(path.join(dataDir, 'postgres'), path.join(volume, 'postgres'), { recursive: true })

  assert.throws(() => checkDatabaseFolder(outside), { message: /are copies of one database; rename the one/ })

  await rm(path.join(dataDir, 'postgres'), { recursive: true })
  checkDatabaseFolder(outside)
  await recordDatabase(outside)
  await rename(path.join(volume, 'postgres'), path.join(dataDir, 'postgres'))
  checkDatabaseFolder(inside)
  await recordDatabase(inside)
  const restored = path.join(home, 'restored')
  await rename(dataDir, restored)
  checkDatabaseFolder({ dataDir: restored, databaseDir: restored })
})

test('a data directory of an earlier version is used with its database, and not without', async (t) => {
  const { dataDir, volume, inside, outside } = await setUp(t)
  for (const folder of ['vms', 'snapshots/manifests']) {
    await createSandbox(dataDir, folder)
    for (const config of [inside, outside]) {
      assert.throws(() => checkDatabaseFolder(config), {
        message:
          /^there is no database in .*, and .*(vms|snapshots) has sandboxes, which an empty database would delete/,
      })
    }
    await rm(path.join(dataDir, folder, 'sb-1.json'))
    checkDatabaseFolder(inside) // Empty folders are not sandboxes.
  }
  await createSandbox(dataDir, 'vms')
  await createDatabase(dataDir, 1n)

  checkDatabaseFolder(inside)
  assert.throws(() => checkDatabaseFolder(outside), {
    message: /WARREN_DATABASE_DIR is .*volume; set it to .*data, or move the folder to .*volume$/,
  })
  await createDatabase(volume, 2n)
  assert.throws(() => checkDatabaseFolder(outside), { message: /rename the one that is not used$/ })
  await rm(path.join(volume, 'postgres'), { recursive: true })
  await recordDatabase(inside)
  checkDatabaseFolder(inside)
})

test('a record that cannot be read is an error, not a new data directory', async (t) => {
  const { dataDir, inside } = await setUp(t)
  for (const text of ['', 'null', '{"version":2}', '{"version":1,"folder":"postgres"}']) {
    await writeFile(path.join(dataDir, 'database.json'), text)
    assert.throws(() => checkDatabaseFolder(inside), { message: `failed to read ${dataDir}/database.json` })
  }
  assert.equal(existsSync(path.join(dataDir, 'postgres')), false)
})
