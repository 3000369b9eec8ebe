/** What a new user does in the first minutes. */

import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { statSync } from 'node:fs'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { promisify } from 'node:util'
import {
  CreateosSandboxAuthError,
  CreateosSandboxClient,
  CreateosSandboxNotFoundError,
} from '@nodeops-createos/sandbox'
import { warrenCommand } from '@warren/kit/warren-command'
import {
  createDataDir,
  fetchPath,
  findInstanceFile,
  type Instance,
  ROOT,
  runWarren,
  startInstance,
} from './support/instance.ts'

const run = promisify(execFile)
const dataDir = await createDataDir({ after })
let instance: Instance

before(async () => {
  instance = await startInstance(dataDir)
})

test('the first start prints the base URL and the file with the API key, but not the key', async () => {
  assert.match(instance.output(), /^Warren \d+\.\d+\.\d+ is ready after \d+\.\d s\.$/m)
  assert.match(instance.baseUrl, /^http:\/\/127\.0\.0\.1:\d+$/)
  assert.match(instance.key, /^skp_[0-9a-f]{64}$/)
  assert.match(instance.output(), new RegExp(`^ +API key +in ${dataDir}/local\\.key$`, 'm'))
  assert.ok(!instance.output().includes(instance.key))
})

test('on a terminal the start prints the API key', async () => {
  const start = `${process.execPath} ${path.join(ROOT, 'cli/src/main.ts')} start`
  const other = await startInstance(await createDataDir({ after }), {
    command: ['script', '--quiet', '--return', '--command', start, '/dev/null'],
  })

  assert.ok(other.output().includes(other.key))
})

test('the start prints lines for people: no JSON, no warnings, no stack', () => {
  for (const line of instance.output().split('\n')) {
    assert.match(
      line,
      /^$|^ {2}\S.* … \d+\.\d s$|^ {2}[\w ]+ {3}(in )?\S+$|^ {2}curl |^Warren [\d.]+ is ready|^Ctrl-C stops it\.$/,
    )
  }
})

test('the curl line works when pasted', async () => {
  const line = /^ +(curl .*)$/m.exec(instance.output())![1]!

  const { stdout } = await run('sh', ['-c', line])

  const { status, data } = JSON.parse(stdout)
  assert.equal(status, 'success')
  assert.equal(data.user_id, (await whoami(instance.key)).user_id)
})

test('warren env prints two lines that a shell understands', async () => {
  const { code, stdout, stderr } = await runWarren(dataDir, 'env')

  assert.equal(code, 0)
  assert.equal(stdout, `WARREN_BASE_URL=${instance.baseUrl}\nWARREN_API_KEY=${instance.key}\n`)
  assert.equal(stderr, '')
})

test('an operator creates a user, changes the plan and adds credit while it runs', async () => {
  const created = await admin('user', 'create', 'ada', '--plan', 'beginner')
  assert.equal(created.plan, 'beginner')
  assert.equal((await whoami(created.api_key)).user_id, created.id)

  await admin('user', 'set-plan', 'ada', 'pro')
  await admin('user', 'add-credit', 'ada', '12.5', '--reason', 'a gift')

  const listed: { name: string; plan: string; credits: number }[] = await admin('user', 'list')
  const ada = listed.find((user) => user.name === 'ada')
  assert.deepEqual([ada?.plan, ada?.credits], ['pro', 512.5])
})

test('a revoked key stops working at once', async () => {
  const user = await admin('user', 'create', 'grace')
  const key = await admin('key', 'create', 'grace', '--name', 'laptop')
  assert.equal((await fetchPath(instance, '/v1/whoami', key.api_key)).status, 200)

  await admin('key', 'revoke', key.id)
  const rejected = await fetchPath(instance, '/v1/whoami', key.api_key)

  assert.equal(rejected.status, 401)
  assert.equal((await fetchPath(instance, '/v1/whoami', user.api_key)).status, 200)
  const listed = await admin('key', 'list', 'grace')
  assert.deepEqual(
    listed.map((one: { name: string; revoked_at: string | null }) => [one.name, one.revoked_at !== null]),
    [
      ['first', false],
      ['laptop', true],
    ],
  )
})

const MISTAKES = [
  { args: ['admin', 'user', 'create', 'eve', '--plan', 'gold'], message: /'gold' is invalid.*free, / },
  { args: ['admin', 'user', 'set-plan', 'missing', 'pro'], message: /user missing not found/ },
  { args: ['admin', 'user', 'add-credit', 'local', 'much'], message: /'much' is invalid/ },
  { args: ['admin', 'key', 'revoke', 'nothing'], message: /key not found/ },
  { args: ['admin', 'usr'], message: /unknown command 'usr'/ },
  { args: ['strat'], message: /unknown command 'strat'/ },
  { args: ['env', 'please'], message: /too many arguments/ },
]

describe('a usage mistake gets a clear message', { concurrency: true }, () => {
  for (const { args, message } of MISTAKES) {
    test(`warren ${args.join(' ')}`, async () => {
      const { code, stdout, stderr } = await runWarren(dataDir, ...args)

      assert.equal(code, 1)
      assert.match(stderr, message)
      assert.doesNotMatch(stderr, /\n {4}at /)
      assert.equal(stdout, '')
    })
  }
})

test('env and admin report when Warren is not running', async (t) => {
  const empty = await createDataDir(t)

  const env = await runWarren(empty, 'env')
  const users = await runWarren(empty, 'admin', 'user', 'list')

  for (const { code, stdout, stderr } of [env, users]) {
    assert.equal(code, 1)
    assert.equal(stdout, '')
    assert.equal(stderr, `warren: Warren is not running on ${empty}; start it with ${warrenCommand()} start\n`)
  }
})

test('the public client works unmodified', async () => {
  const client = new CreateosSandboxClient({ baseUrl: instance.baseUrl, apiKey: instance.key })

  assert.equal((await client.healthz()).up, true)
  assert.equal((await client.readyz()).ready, true)
  assert.equal((await client.whoami()).user_id, (await whoami(instance.key)).user_id)
  assert.ok((await client.listShapes()).some((shape) => shape.id === 's-1vcpu-1gb'))
  const rootfs = await client.listRootfs()
  assert.ok(rootfs.rootfs.includes(rootfs.default))
  assert.deepEqual(await client.listHosts(), [])
  assert.deepEqual(await client.listSandboxes(), [])
  await assert.rejects(client.getSandbox('sb-none'), CreateosSandboxNotFoundError)
})

test('a wrong key is an authentication error of the public client', async () => {
  const client = new CreateosSandboxClient({ baseUrl: instance.baseUrl, apiKey: `skp_${'0'.repeat(64)}` })

  await assert.rejects(client.whoami(), (error) => {
    assert.ok(error instanceof CreateosSandboxAuthError)
    assert.equal(error.statusCode, 401)
    assert.equal(error.code, 'unauthorized')
    return true
  })
})

test('files in the data directory are readable only by their owner, the instance file too', async () => {
  const { stdout } = await run('find', [dataDir, '-perm', '/077', '-not', '-type', 'l', '-not', '-type', 's'])

  // Folders of root and of PostgreSQL that services can enter, by their groups.
  const forGroups = new RegExp(`^${dataDir}/(postgres-socket|mirror/control-plane(/\\w+)*)$`)
  const open = stdout.split('\n').filter((file) => file !== '')
  assert.deepEqual(
    open.filter((file) => !forGroups.test(file) || (statSync(file).mode & 0o027) !== 0),
    [],
  )
  assert.equal((await findInstanceFile(dataDir))!.pid, instance.pid)
})

async function whoami(key: string): Promise<{ user_id: string }> {
  const body = (await (await fetchPath(instance, '/v1/whoami', key)).json()) as { data: { user_id: string } }
  return body.data
}

async function admin(...args: string[]) {
  const { code, stdout, stderr } = await runWarren(dataDir, 'admin', '--json', ...args)
  assert.equal(code, 0, stderr)
  return JSON.parse(stdout)
}
