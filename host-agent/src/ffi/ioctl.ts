/** ioctl(2) with a number or with a buffer as its argument. */
import { bindSystemCall } from './system-call.ts'

const withValue = bindSystemCall('int ioctl(int fd, ulong request, ulong value)')
const withData = bindSystemCall('int ioctl(int fd, ulong request, _Inout_ void *data)')

export const ioctlValue = (fd: number, request: number, value: number): number => withValue(fd, request, value)

/** The kernel reads the buffer, and may write its answer into it. */
export const ioctlData = (fd: number, request: number, data: Buffer): number => withData(fd, request, data)
