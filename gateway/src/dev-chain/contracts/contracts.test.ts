import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { compileContracts } from './compile.ts'

test('the committed contracts belong to their source', async () => {
  const committed = JSON.parse(readFileSync(new URL('contracts.json', import.meta.url), 'utf8'))

  assert.deepEqual(
    JSON.parse(await compileContracts()),
    committed,
    'run node gateway/src/dev-chain/contracts/compile.ts',
  )
})
