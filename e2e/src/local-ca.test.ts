/** HTTPS to sandboxes with Warren's local certificate authority: `warren ca` prints it and curl trusts it. */
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { writeFile } from 'node:fs/promises'
import path from 'node:path'
import { after, test } from 'node:test'
import { promisify } from 'node:util'
import { createDataDir, type Instance, runWarren, startInstance, stop } from './support/instance.ts'

const run = promisify(execFile)
/** No sandbox has this name, so the ingress itself responds with 404; TLS must succeed for that. */
const NAME = '01arz3ndektsv4rrffq69g5fav-8080.localhost'

const dataDir = await createDataDir({ after })

test('before the first start there is no authority, and the message says how to create one', async () => {
  const { code, stderr } = await runWarren(dataDir, 'ca')

  assert.notEqual(code, 0)
  assert.match(stderr, /there is no certificate authority in .* start Warren with \S*warren start, which creates it/)
})

test('curl trusts the ingress only with the authority, only for names below the domain, and after a restart too', async () => {
  const instance = await startInstance(dataDir)
  const { code, stdout: pem } = await runWarren(dataDir, 'ca')
  const file = path.join(path.dirname(dataDir), 'ca.pem')
  await writeFile(file, pem)
  const portOf = ({ output }: Instance) => /localhost:(\d+)$/m.exec(output())![1]! // Printed with the ingress URL.
  const curl = (...args: string[]) =>
    run('curl', ['-s', '-o', '/dev/null', '-w', '%{http_code}', '--noproxy', '*', ...args]).then(
      ({ stdout }) => stdout,
      ({ code }: { code: number }) => `exit ${code}`,
    )
  const url = `https://${NAME}:${portOf(instance)}/`
  const elsewhere = ['--connect-to', `example.com:443:127.0.0.1:${portOf(instance)}`, 'https://example.com/']

  assert.equal(code, 0)
  assert.match(pem, /^# Warren local authority for localhost\n-----BEGIN CERTIFICATE-----\n/)
  assert.equal(await curl('--cacert', file, url), '404')
  assert.equal(await curl(url), 'exit 60')
  assert.equal(await curl('--cacert', file, ...elsewhere), 'exit 60')

  await stop(instance)
  const again = await startInstance(dataDir)
  assert.equal((await runWarren(dataDir, 'ca')).stdout, pem)
  assert.equal(await curl('--cacert', file, `https://${NAME}:${portOf(again)}/`), '404')
})
