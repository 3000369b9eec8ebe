/** A full disk below the log: /dev/full fails every write with "no space left on device". */
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { createDataDir, findInstanceFile, launch, ROOT, stop } from './support/instance.ts'

test('Warren starts, serves and stops although nothing that it prints can be written', async (t) => {
  const dataDir = await createDataDir(t)
  const start = [process.execPath, path.join(ROOT, 'cli/src/main.ts'), 'start']
  const launched = launch(dataDir, {
    command: ['sh', '-c', 'exec "$@" >/dev/full 2>&1', 'sh', ...start],
    env: { WARREN_VMS: 'off', WARREN_GATEWAY: 'off', WARREN_LOG_LEVEL: 'trace' },
  })
  const baseUrl = await until(async () => (await findInstanceFile(dataDir))?.baseUrl, 'Warren is ready')
  const key = (await readFile(path.join(dataDir, 'local.key'), 'utf8')).trim()

  for (let n = 0; n < 20; n++) {
    const response = await fetch(`${baseUrl}/v1/whoami`, { headers: { 'x-api-key': key } })
    assert.equal(response.status, 200)
  }

  assert.equal(await stop(launched), 0)
})
