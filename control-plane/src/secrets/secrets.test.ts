import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { promisify } from 'node:util'
import { CRASH_POINTS_VARIABLE } from '@warren/kit/crash-point'
import { startTestPostgres } from '@warren/kit/postgres/testing'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import { newId } from '@warren/protocol'
import { Migrator } from 'kysely/migration'
import { connectDatabase, type Database } from '../db/connect.ts'
import { migrate, readMigrations } from '../db/migrate.ts'
import { writeHeartbeat } from '../jobs/processes.ts'
import { getEnvs, saveEnvs } from '../sandboxes/envs.ts'
import { createTestDeps, reconnect } from '../testing/app.ts'
import { createTestDatabaseUrl } from '../testing/database.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { createUser } from '../users/create.ts'
import { newSecretKey, renderKey } from './cipher.ts'
import { readKeys } from './key-source.ts'
import { diskCredentialsPlace, envsPlace, SECRET_COLUMNS } from './places.ts'
import { rotateSecrets } from './rotate.ts'
import { createSecrets } from './secrets.ts'
import { findKeys, registerKeys } from './start.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-secrets-'))
after(() => rm(folder, { recursive: true, force: true }))
const server = await startTestPostgres()
after(() => server.stop())
let files = 0
const newFile = () => path.join(folder, `secrets-${files++}.key`)

/** An empty database. */
async function newDatabase(): Promise<Database> {
  const name = `secrets_${files++}`
  const admin = connectDatabase(server.url, { warn() {} }, { max: 1 })
  await admin.pool.query(`create database ${name}`)
  await admin.close()
  const database = connectDatabase(server.url.replace('/postgres?', `/${name}?`), { warn() {} }, { queryLimitMs: 0 })
  after(() => database.close())
  return database
}

async function start(database: Database, source: { value: string; file: string }) {
  const keys = await findKeys(database, source)
  const { promise, resolve } = Promise.withResolvers<Awaited<ReturnType<typeof registerKeys>>>()
  await migrate(database, async () => resolve(await registerKeys(database, keys, source)))
  return promise
}

const MAIN = path.resolve(import.meta.dirname, '../main.ts')
const ADMIN = path.resolve(import.meta.dirname, '../admin/main.ts')

const envOf = (database: Database, file: string, more: NodeJS.ProcessEnv = {}) => ({
  ...process.env,
  NODE_TEST_CONTEXT: undefined,
  DATABASE_URL: database.url,
  WARREN_SECRETS_KEY_FILE: file,
  WARREN_PORT: '0',
  WARREN_METRICS_PORT: '0',
  WARREN_INGRESS: 'off',
  WARREN_LOG_LEVEL: 'info',
  WARREN_LOG_FORMAT: 'json',
  ...more,
})

/** Runs the control plane until it is ready, then stops it; or until it exits. */
async function runMain(env: NodeJS.ProcessEnv): Promise<{ output: string; code: number | null }> {
  const child = spawn(process.execPath, [MAIN], { env, stdio: ['ignore', 'pipe', 'pipe'] })
  let output = ''
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += chunk))
  const ended = once(child, 'exit')
  await until(() => output.includes('control plane is ready') || child.exitCode !== null || child.signalCode !== null)
  child.kill('SIGTERM')
  const [code] = await ended
  return { output, code }
}

test('the first start creates a key file that only its owner can read, and later starts use it', async () => {
  const database = await newDatabase()
  const file = newFile()

  const first = await start(database, { value: '', file })
  const second = await start(database, { value: '', file })

  assert.equal((await stat(file)).mode & 0o777, 0o600)
  assert.equal(second.keyIds()[0], first.keyIds()[0])
  assert.equal(await second.open(envsPlace('sb-1'), first.seal(envsPlace('sb-1'), 'x')), 'x')
})

test('several processes that start for the first time at once use one key', async () => {
  const database = await newDatabase()
  const file = newFile()

  const started = await Promise.all([1, 2, 3, 4].map(() => start(reconnect(database), { value: '', file })))

  assert.equal(new Set(started.map((secrets) => secrets.keyIds()[0])).size, 1)
})

test('a start with the wrong key says so, and changes nothing', async () => {
  const database = await newDatabase()
  const file = newFile()
  const right = (await start(database, { value: '', file })).keyIds()[0]!
  await database.pool.query(`delete from kysely_migration where name >= '0006'`)
  const before = await database.pool.query('select * from kysely_migration order by name')
  const wrong = newSecretKey()

  const { output, code } = await runMain(envOf(database, file, { WARREN_SECRETS_KEY: renderKey(wrong) }))

  assert.equal(code, 1)
  assert.match(output, /wrong secrets key: the secrets in this database are encrypted with key/)
  assert.ok(output.includes(right) && output.includes(wrong.id) && output.includes('Nothing was changed'))
  assert.ok(!output.includes(renderKey(wrong)), 'a key is in the log')
  assert.deepEqual((await database.pool.query('select * from kysely_migration order by name')).rows, before.rows)
})

test('a start without the key file of its database fails, and does not create another one', async () => {
  const database = await newDatabase()
  await start(database, { value: '', file: newFile() })
  const file = newFile()

  await assert.rejects(start(database, { value: '', file }), /does not exist\. Nothing was changed\. Restore/)
  assert.equal(existsSync(file), false)
})

test('a start with neither a key nor a file says how to make a key', async () => {
  await assert.rejects(start(await newDatabase(), { value: '', file: '' }), /openssl rand -hex 32/)
})

test('an unreadable key file is named in the error, without its content', async () => {
  const file = newFile()
  await writeFile(file, 'not a key\n')

  await assert.rejects(start(await newDatabase(), { value: '', file }), (error: Error) =>
    error.message.startsWith(`${file} is invalid: a key must be 32 bytes`),
  )
})

test('plain values of an earlier version are encrypted, also if the start is killed twice in the middle', async () => {
  const database = await newDatabase()
  const migrator = new Migrator({ db: database.db, provider: { getMigrations: readMigrations } })
  const { error } = await migrator.migrateTo('0005_network')
  assert.equal(error, undefined)
  // By SQL, because the code of users needs the columns of later migrations.
  await database.pool.query(`insert into users (id, name, plan) values ('usr_1', 'ada', 'local')`)
  await database.pool.query(
    `with inserted as (insert into sandboxes (id, user_id, name, status, shape, rootfs, region, vcpu, mem_mib, disk_mib,
        bandwidth_quota_bytes)
      select 'sb-' || n, 'usr_1', 'name-' || n, 'paused', 's', 'r', 'eu', 1, 1, 1, 0 from generate_series(1, 1200) n returning id)
    insert into sandbox_envs (sandbox_id, envs) select id, jsonb_build_object('TOKEN', 'plain-' || id) from inserted`,
  )
  const file = newFile()
  const crashPoints = await mkdtemp(path.join(folder, 'crash-'))
  const env = envOf(database, file, { [CRASH_POINTS_VARIABLE]: crashPoints })

  for (const point of ['secrets.batch', 'secrets.sealed']) {
    await writeFile(path.join(crashPoints, point), 'kill')
    await runMain(env)
    assert.ok(existsSync(path.join(crashPoints, `${point}.reached`)), point)
  }
  const { output } = await runMain(env)

  assert.match(output, /control plane is ready/)
  const secrets = createSecrets((await readKeys({ value: '', file }))!, (await readKeys({ value: '', file }))![0]!.id)
  const { rows } = await database.pool.query<Record<string, string>>('select * from sandbox_envs')
  assert.equal(rows.length, 1200)
  assert.deepEqual(Object.keys(rows[0]!).sort(), ['envs', 'key_id', 'sandbox_id'])
  for (const { sandbox_id, envs } of rows) {
    const opened = await secrets.open(envsPlace(sandbox_id!), envs!)
    assert.deepEqual(JSON.parse(opened), { TOKEN: `plain-${sandbox_id}` })
  }
  const dump = await tableFile(database, 'sandbox_envs')
  assert.ok(!dump.includes('plain-sb-'), 'a plain value is left in the file of the table')
})

/** The bytes of the table as PostgreSQL stores them, including old row versions. */
async function tableFile({ pool }: Database, table: string): Promise<Buffer> {
  await pool.query('checkpoint')
  const { rows } = await pool.query(
    `select current_setting('data_directory') || '/' || pg_relation_filepath($1) as file`,
    [table],
  )
  return readFile(rows[0].file)
}

/** A database with one key in a file, a process that uses it, and a sandbox with a variable. */
async function rotationSubject() {
  const url = await createTestDatabaseUrl()
  const database = connectDatabase(url, { warn() {} })
  after(() => database.close())
  await database.pool.query('delete from secret_keys')
  const source = { value: '', file: newFile() }
  const secrets = await start(database, source)
  const deps = { ...createTestDeps(database), secrets }
  const user = await createUser(deps.db, { name: newId('user'), plan: 'local' })
  const ids: string[] = []
  for (let i = 0; i < 3; i++) {
    const { id } = await insertSandbox(deps.db, user.id, 'paused')
    await deps.db.transaction().execute((tx) => saveEnvs(deps, tx, [id], { TOKEN: `value-${id}` }))
    ids.push(id)
  }
  const disk = newId('disk')
  const sealed = deps.secrets.seal(diskCredentialsPlace(disk), 'credentials')
  const config = { bucket: 'b', endpoint: 'https://s3.example.com', region: 'auto', use_path_style: false }
  const values = { id: disk, user_id: user.id, name: 'disk', ...config, credentials: sealed, deleted_at: null }
  await deps.db.insertInto('disks').values(values).execute()
  const assertReadable = async () => {
    const { credentials } = await deps.db.selectFrom('disks').selectAll().executeTakeFirstOrThrow()
    assert.equal(await deps.secrets.open(diskCredentialsPlace(disk), credentials!), 'credentials')
    for (const id of ids) assert.deepEqual(await getEnvs(deps, deps.db, id), { TOKEN: `value-${id}` })
  }
  await writeHeartbeat(deps, [])
  const beating = setInterval(() => void writeHeartbeat(deps, []).catch(() => {}), 100)
  after(() => clearInterval(beating))
  return { database, source, deps, ids, user, assertReadable }
}

test('every table with secrets is part of a rotation', async () => {
  const database = await newDatabase()
  await start(database, { value: '', file: newFile() })

  const { rows } = await database.pool.query<{
    name: string
  }>(`select table_name as name from information_schema.columns
    where table_schema = current_schema() and column_name = 'key_id' and is_generated = 'ALWAYS' order by 1`)

  assert.deepEqual(
    rows.map(({ name }) => name),
    SECRET_COLUMNS.map(({ table }) => table).sort(),
  )
})

test('a rotation encrypts every secret again while a process runs, and removes the old key', async () => {
  const { database, source, deps, user, assertReadable } = await rotationSubject()
  const [oldId] = deps.secrets.keyIds()

  const result = await rotateSecrets(database, source)

  const keys = (await readKeys(source))!
  assert.deepEqual(
    keys.map(({ id }) => id),
    [result.key_id],
  )
  assert.notEqual(result.key_id, oldId)
  assert.deepEqual({ secrets: result.secrets, removed: result.removed_keys }, { secrets: 4, removed: 1 })
  assert.equal(deps.secrets.keyIds()[0], result.key_id)
  await assertReadable()
  // Only the new key is needed now, also for what the process stores.
  const { id } = await insertSandbox(deps.db, user.id)
  await deps.db.transaction().execute((tx) => saveEnvs(deps, tx, [id], { A: 'b' }))
  const fresh = { ...deps, secrets: await start(database, source) }
  assert.deepEqual(await getEnvs(fresh, deps.db, id), { A: 'b' })
})

test('a rotation that is killed at any step is completed by the next one, and every secret stays readable', async () => {
  const { database, source, deps, assertReadable } = await rotationSubject()
  const crashPoints = await mkdtemp(path.join(folder, 'crash-'))
  const env = envOf(database, source.file, { [CRASH_POINTS_VARIABLE]: crashPoints })

  for (const point of ['chosen', 'switched', 'sealed', 'removed']) {
    await writeFile(path.join(crashPoints, `rotation.${point}`), 'kill')
    await promisify(execFile)(process.execPath, [ADMIN, 'secrets', 'rotate'], { env }).catch(() => {})
    assert.ok(existsSync(path.join(crashPoints, `rotation.${point}.reached`)), point)
    await assertReadable()
    await start(reconnect(database), source)
  }
  const { stdout } = await promisify(execFile)(process.execPath, [ADMIN, '--json', 'secrets', 'rotate'], { env })

  assert.deepEqual(
    (await readKeys(source))!.map(({ id }) => id),
    [JSON.parse(stdout).key_id],
  )
  assert.equal((await deps.db.selectFrom('secret_keys').selectAll().execute()).length, 1)
  await assertReadable()
})

test('a rotation without the keys of the database fails, and writes no key file', async () => {
  const database = await newDatabase()
  await start(database, { value: '', file: newFile() })
  const file = newFile()

  await assert.rejects(rotateSecrets(database, { value: '', file }), /secrets key [0-9a-f]{16} is missing/)

  await assert.rejects(stat(file), { code: 'ENOENT' })
})

test('a key that a row needs cannot be removed, and no row can be written under a removed key', async () => {
  const { database, deps, ids } = await rotationSubject()

  await assert.rejects(database.pool.query('delete from secret_keys'), /foreign key/)
  const stranger = newSecretKey()
  const sealed = createSecrets([stranger], stranger.id).seal(envsPlace(ids[0]!), '{}')
  await assert.rejects(deps.db.updateTable('sandbox_envs').set({ envs: sealed }).execute(), /foreign key/)
})

test('with WARREN_SECRETS_KEY, a rotation needs the new key in front of the old one in every process', async () => {
  const { database, source, deps, assertReadable } = await rotationSubject()
  const old = (await readKeys(source))![0]!
  const added = newSecretKey()
  const both = { value: `${renderKey(added)},${renderKey(old)}`, file: '' }

  await assert.rejects(rotateSecrets(database, { value: renderKey(old), file: '' }), /in front of the old one/)
  await assert.rejects(rotateSecrets(database, { value: renderKey(added), file: '' }), /is missing/)
  const waiting = rotateSecrets(database, both)
  await passTime(500, 'the process does not have the new key yet')
  assert.equal((await deps.db.selectFrom('secret_keys').selectAll().execute()).length, 1)
  deps.secrets = createSecrets([added, old], old.id)
  const { key_id } = await waiting

  assert.equal(key_id, added.id)
  assert.equal(deps.secrets.keyIds()[0], added.id)
  await assertReadable()
})
