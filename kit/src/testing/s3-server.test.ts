import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { parseS3Error } from '../s3/error.ts'
import { S3_SERVERS, startS3Server } from './s3-server.ts'

for (const name of S3_SERVERS) {
  const server = await startS3Server({ after }, name)
  await server.createBucket('media')

  test(`${name} stores what is signed with its key`, async () => {
    const key = "odd name +&'é*()~!/%2F"

    const stored = await server.request('PUT', 'media', key, { body: 'contents' })
    const read = await server.request('GET', 'media', key)

    assert.equal(stored.status, 200, stored.body.toString())
    assert.equal(read.body.toString(), 'contents')
    assert.deepEqual(await server.listKeys('media'), [key])
  })

  test(`${name} refuses a signature with another secret`, async () => {
    const credentials = { ...server.credentials, secretKey: 'wrong' }

    const reply = await server.request('GET', 'media', 'x', { credentials })

    assert.equal(reply.status, 403)
    assert.equal(parseS3Error(reply.body.toString())?.code, 'SignatureDoesNotMatch')
  })

  test(`${name} keeps its data over a restart with other credentials, and refuses the old ones`, async () => {
    const old = server.credentials
    await server.request('PUT', 'media', 'kept', { body: 'kept' })

    await server.stop()
    await server.start({ accessKey: 'AKIANEWACCESSKEY', secretKey: 'another-secret' })
    const read = await server.request('GET', 'media', 'kept')
    const refused = await server.request('GET', 'media', 'kept', { credentials: old })

    assert.equal(read.body.toString(), 'kept')
    assert.notEqual(refused.status, 200)
  })
}
