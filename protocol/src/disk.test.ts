import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import {
  checkDiskConfig,
  checkDiskCredentials,
  checkDiskEndpoint,
  checkDiskSubPath,
  checkMountPath,
  DiskAttachBody,
  DiskAttachmentView,
  DiskCreateBody,
  isAddressEndpoint,
  MOUNT_ERROR_MAX_BYTES,
  truncateMountError,
} from './disk.ts'
import { newId } from './ids.ts'
import { utf8Length } from './utf8.ts'

const body: DiskCreateBody = {
  name: 'shared-data',
  kind: 's3',
  config: { bucket: 'data', endpoint: 'https://s3.example.com' },
  credentials: { access_key: 'a', secret_key: 's' },
}

test('a disk needs a name, the kind s3, a bucket, an endpoint and both keys', () => {
  assert.ok(Value.Check(DiskCreateBody, body))
  assert.ok(Value.Check(DiskCreateBody, { ...body, config: { ...body.config, region: null, use_path_style: null } }))
  for (const name of ['', '-a', 'A', 'a_b', 'a'.repeat(64)]) {
    assert.ok(!Value.Check(DiskCreateBody, { ...body, name }), name)
  }
  assert.ok(!Value.Check(DiskCreateBody, { ...body, kind: 'nfs' }))
  assert.ok(!Value.Check(DiskCreateBody, { ...body, config: { ...body.config, bucket: '' } }))
  assert.ok(!Value.Check(DiskCreateBody, { ...body, credentials: { access_key: 'a' } }))
})

test('an endpoint is a base URL without credentials or query', () => {
  assert.equal(checkDiskEndpoint('http://127.0.0.1:9000'), undefined)
  assert.equal(checkDiskEndpoint('https://store.example.com/s3/'), undefined)
  assert.match(checkDiskEndpoint('s3.example.com') ?? '', /full http/)
  assert.match(checkDiskEndpoint('ftp://s3.example.com') ?? '', /full http/)
  assert.match(checkDiskEndpoint('https://key:secret@s3.example.com') ?? '', /credentials/)
  assert.match(checkDiskEndpoint('https://s3.example.com/?x=1') ?? '', /query/)
})

test('a region has letters, digits and dashes; a store at an address has no host names for buckets', () => {
  const faults = (config: object) => checkDiskConfig({ ...body.config, ...config })

  for (const config of [{}, { region: '' }, { region: 'us-east-1' }]) assert.deepEqual(faults(config), {})
  assert.deepEqual(Object.keys(faults({ region: 'eu/west' })), ['config.region'])
  assert.deepEqual(Object.keys(faults({ endpoint: 'store' })), ['config.endpoint'])
  for (const endpoint of ['http://127.0.0.1:9000', 'http://[::1]', 'http://localhost:9000', 'http://2130706433']) {
    assert.ok(isAddressEndpoint(endpoint), endpoint)
  }
  assert.ok(!isAddressEndpoint('https://s3.eu-west-1.amazonaws.com'))
})

test('credentials are texts that fit into a header', () => {
  assert.deepEqual(checkDiskCredentials({ access_key: 'AKIA-1_=+', secret_key: 'a/b+c=,' }), {})
  for (const access_key of ['a b', 'a,b', 'a/b', 'a\n', 'ä']) {
    assert.deepEqual(Object.keys(checkDiskCredentials({ access_key, secret_key: 's' })), ['credentials.access_key'])
  }
  assert.deepEqual(Object.keys(checkDiskCredentials({ access_key: 'a', secret_key: 's\r' })), [
    'credentials.secret_key',
  ])
})

test('a prefix has no dot segments and leaves room for the keys below it', () => {
  for (const prefix of ['', '/', 'a', '/a/b/', 'a//b', '.hidden', 'a..b'])
    assert.equal(checkDiskSubPath(prefix), undefined)
  for (const prefix of ['..', 'a/../b', '.', 'a/./b', 'a\nb', 'x'.repeat(513)]) {
    assert.equal(typeof checkDiskSubPath(prefix), 'string', prefix)
  }
})

test('a disk can be mounted anywhere except over the root and the file systems of the kernel', () => {
  assert.equal(checkMountPath('/mnt/data'), undefined)
  assert.equal(checkMountPath('/running'), undefined)
  assert.match(checkMountPath('/./') ?? '', /root directory/)
  for (const path of ['/proc', '/dev/shm', '/run//user', '/./sys/']) {
    assert.match(checkMountPath(path) ?? '', /^must not be in \/(proc|dev|run|sys)$/, path)
  }
  assert.match(checkMountPath('mnt') ?? '', /absolute/)
  assert.match(checkMountPath('/mnt/../etc') ?? '', /"\.\."/)
})

test('an attachment without a prefix or an error omits these fields', () => {
  const view = {
    disk_id: newId('disk'),
    name: 'shared-data',
    kind: 's3',
    config: { bucket: 'b', endpoint: 'https://s3.example.com' },
    mount_path: '/mnt/data',
    read_only: false,
    mount_status: 'mounted',
  }

  assert.ok(Value.Check(DiskAttachmentView, view))
  assert.ok(!Value.Check(DiskAttachmentView, { ...view, mount_error: null }))
  assert.ok(!Value.Check(DiskAttachmentView, { ...view, mount_status: 'error' }))
  assert.ok(!Value.Check(DiskAttachBody, { disk_id: '', mount_path: '/mnt' }))
})

test('a mount error is truncated to one kibibyte', () => {
  assert.equal(truncateMountError('no such bucket'), 'no such bucket')
  assert.equal(utf8Length(truncateMountError('€'.repeat(1000))), MOUNT_ERROR_MAX_BYTES - 1)
})
