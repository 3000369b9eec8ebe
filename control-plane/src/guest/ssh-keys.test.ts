import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { insertSandbox } from '../testing/sandboxes.ts'
import { createHostedApp } from '../testing/with-host.ts'

const KEYS = [1, 2, 3, 4, 5, 6, 7, 8].map((n) => {
  const field = (bytes: Buffer) => Buffer.concat([Buffer.from([0, 0, 0, bytes.length]), bytes])
  const blob = Buffer.concat([field(Buffer.from('ssh-ed25519')), field(Buffer.alloc(32, n))])
  return `ssh-ed25519 ${blob.toString('base64')} key-${n}`
}) as [string, string, string, ...string[]]

const { deps, host, user, create, send } = await createHostedApp()
const ada = await user({ plan: 'local' })

const add = (id: string, keys: unknown, who = ada) => send('POST', `/v1/sandboxes/${id}/ssh-pubkeys`, who, { keys })
const keysOf = async (id: string) => (await send('GET', `/v1/sandboxes/${id}`, ada)).body.data.ssh_pubkeys
const doorOf = (id: string) => host.vms.get(id)!.guest.sshPubkeys

test.beforeEach(() => {
  host.hooks = {}
})

test('added keys reach a running sandbox immediately, each counted once whatever its comment', async () => {
  const { id } = (await create(ada, { ssh_pubkeys: [KEYS[0]] })).body.data

  const { status, body } = await add(id, [KEYS[1], KEYS[0].replace('key-1', 'another comment'), KEYS[1]])

  assert.deepEqual([status, body.data], [200, { count: 2 }])
  assert.deepEqual(doorOf(id), [KEYS[0], KEYS[1]])
  assert.deepEqual(await keysOf(id), [KEYS[0], KEYS[1]])
})

test('an invalid key is named, and none of the request is added', async () => {
  const { id } = (await create(ada)).body.data

  const { status, body } = await add(id, [KEYS[0], 'ssh-ed25519 AAAA', KEYS[1]])

  assert.deepEqual([status, body.data.code], [400, 'validation_failed'])
  assert.match(body.data.keys, /^key 2 /)
  assert.deepEqual([await keysOf(id), doorOf(id)], [[], []])
})

test('keys are accepted in every state except destroyed and failed ones', async () => {
  for (const status of ['creating', 'pausing', 'paused', 'resuming', 'forking', 'error', 'destroying'] as const) {
    const { id } = await insertSandbox(deps.db, ada.id, status)
    assert.deepEqual((await add(id, [KEYS[0]])).body, { status: 'success', data: { count: 1 } }, status)
  }
  for (const status of ['destroyed', 'failed'] as const) {
    const { id } = await insertSandbox(deps.db, ada.id, status)
    const { status: code, body } = await add(id, [KEYS[0]])
    assert.deepEqual([code, body.data.message], [409, `sandbox is ${status}, expected a living sandbox`])
  }
})

test('a key added while the sandbox starts reaches the guest soon after it runs', async () => {
  const started = Promise.withResolvers<string>()
  const go = Promise.withResolvers<void>()
  host.hooks = {
    beforeCreate: (body) => {
      started.resolve(body.id)
      return go.promise
    },
  }
  const made = create(ada)
  const id = await started.promise

  assert.equal((await add(id, [KEYS[0]])).status, 200)
  go.resolve()
  await made

  await until(() => doorOf(id).length === 1, 'the keys are in the guest', 30_000)
})

test('keys added concurrently are all stored, in the row and in the guest', async () => {
  const { id } = (await create(ada)).body.data

  await Promise.all(KEYS.map((key) => add(id, [key])))

  assert.deepEqual([...(await keysOf(id))].sort(), [...KEYS].sort())
  assert.deepEqual([...doorOf(id)].sort(), [...KEYS].sort())
})

test('an unreachable guest is 502; the key is stored for the next resume', async () => {
  const { id } = (await create(ada)).body.data
  host.hooks = { guest: (stream) => stream.close(2) }

  const { status, body } = await add(id, [KEYS[0]])

  assert.deepEqual([status, body.message], [502, 'guest unreachable'])
  assert.deepEqual(await keysOf(id), [KEYS[0]])
})
