import assert from 'node:assert/strict'
import { test } from 'node:test'
import { planLimits } from '../users/plans.ts'
import type { Caller } from './caller.ts'
import { CredentialCache } from './credential-cache.ts'

const ada: Caller = {
  kind: 'user',
  credential: 'skp_0000...0000',
  user: { id: 'usr_ada', plan: 'free', limits: planLimits('free'), operator: false },
}

function counted(result: Caller | undefined) {
  const counter = {
    calls: 0,
    async lookUp() {
      counter.calls++
      return { caller: result }
    },
  }
  return counter
}

test('nothing is cached while notifications of changes cannot be received', async () => {
  const cache = new CredentialCache()
  const source = counted(ada)

  await cache.find('key', () => source.lookUp())
  await cache.find('key', () => source.lookUp())

  assert.equal(source.calls, 2)
})

test('a lookup that was running during a change is used but not cached', async () => {
  const cache = new CredentialCache()
  cache.setEnabled(true)
  const pending = Promise.withResolvers<{ caller: Caller }>()
  const early = cache.find('key', () => pending.promise)

  cache.clear()
  pending.resolve({ caller: ada })

  assert.equal(await early, ada)
  const source = counted(undefined)
  assert.equal(await cache.find('key', () => source.lookUp()), undefined)
  assert.equal(source.calls, 1)
})

test('a lookup that starts after a change does not share one that started before it', async () => {
  const cache = new CredentialCache()
  cache.setEnabled(true)
  const pending = Promise.withResolvers<{ caller: Caller }>()
  void cache.find('key', () => pending.promise)

  cache.clear()
  const late = await cache.find('key', () => counted(undefined).lookUp())

  assert.equal(late, undefined)
  pending.resolve({ caller: ada })
})

test('an unknown credential is looked up every time', async () => {
  const cache = new CredentialCache()
  cache.setEnabled(true)
  const source = counted(undefined)

  await cache.find('guess', () => source.lookUp())
  await cache.find('guess', () => source.lookUp())

  assert.equal(source.calls, 2)
})

test('a caller is not cached longer than its own time to live', async () => {
  const cache = new CredentialCache()
  cache.setEnabled(true)
  const source = counted(ada)
  const lookUp = async () => ({ ...(await source.lookUp()), ttlMs: 0 })

  await cache.find('key', lookUp)
  await cache.find('key', lookUp)

  assert.equal(source.calls, 2)
})
