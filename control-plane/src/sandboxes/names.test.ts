import assert from 'node:assert/strict'
import { test } from 'node:test'
import { checkSandboxName } from '@warren/protocol'
import { sql } from 'kysely'
import { createTestApp } from '../testing/app.ts'
import { ADJECTIVES, ANIMALS } from './name-words.ts'
import { chooseName, generateName } from './names.ts'

const { deps, user } = await createTestApp()

test('every generated name is valid', () => {
  for (const word of [...ADJECTIVES, ...ANIMALS]) assert.match(word, /^[a-z]{2,20}$/)
  for (let i = 0; i < 1000; i++) assert.equal(checkSandboxName(generateName()), undefined)
  assert.ok(ADJECTIVES.length * ANIMALS.length > 100_000)
  assert.equal(new Set(ADJECTIVES).size + new Set(ANIMALS).size, ADJECTIVES.length + ANIMALS.length)
})

test('when all word pairs are taken, a number makes the name unique', async () => {
  const { id } = await user()
  await sql`insert into sandboxes
      (id, user_id, name, status, shape, rootfs, region, vcpu, mem_mib, disk_mib, bandwidth_quota_bytes)
    select 'sb-' || a || b, ${id}, a || '-' || b, 'running', '', '', '', 1, 1, 1, 1
    from unnest(${ADJECTIVES}::text[]) a, unnest(${ANIMALS}::text[]) b`.execute(deps.db)

  const name = await deps.db.transaction().execute((tx) => chooseName(tx, id, undefined))

  assert.match(name, /^[a-z]+-[a-z]+-\d+$/)
})
